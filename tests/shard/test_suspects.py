"""Who killed the engine: halves of what ran, until one is found that dies alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from dying_engines import finish, note, outcomes, staged_spec

from blendserve_core.shard.in_flight import read_in_flight
from blendserve_core.shard.suspects import EVIDENCE_NEEDED, EVIDENCE_OF_A_KILL, TWICE, Suspects
from schemas.shard import EngineSpec


@pytest.fixture
def spec(tmp_path: Path) -> EngineSpec:
    return staged_spec(tmp_path)


def run_suspects(spec: EngineSpec, suspects: Suspects, poison: set[int]) -> None:
    """Run every group as an engine would that dies of ``poison``."""
    while (group := suspects.next_group()) is not None:
        if poison & set(group):
            note(spec, *group)
            suspects.take_in_death()
        else:
            finish(spec, *group)


def test_an_engine_notes_what_it_computes_whatever_ends_it(spec: EngineSpec) -> None:
    folder = Path(spec.output_folder)
    assert read_in_flight(folder).tolist() == []
    note(spec, 3, 1, 2)
    assert read_in_flight(folder).tolist() == [3, 1, 2]
    (folder / "in_flight.bin").write_bytes(b"\xff" * 20)
    assert read_in_flight(folder).tolist() == []


@pytest.mark.parametrize("poison", [{0}, {7}, {2, 3}, {0, 5, 6}, set(range(8))], ids=str)
def test_the_rows_that_kill_become_errors_and_the_others_that_ran_beside_them_texts(spec: EngineSpec, poison: set[int]) -> None:
    note(spec, *range(8))
    suspects = Suspects(spec)
    suspects.take_in_death()
    run_suspects(spec, suspects, poison)
    found = outcomes(spec)
    assert set(found) == set(range(8))
    assert {request for request, row in found.items() if row["finish_reason"] == "error"} == poison
    for request in poison:
        assert found[request]["error"] == {"type": "engine_died", "message": TWICE, "stage": "generate"}


def test_one_row_in_flight_is_tried_once_more_before_it_is_blamed(spec: EngineSpec) -> None:
    note(spec, 4)
    suspects = Suspects(spec)
    suspects.take_in_death()
    assert outcomes(spec) == {}
    assert suspects.next_group() == [4]
    note(spec, 4)
    suspects.take_in_death()
    assert outcomes(spec)[4]["error"]["message"] == TWICE


def test_a_row_is_not_blamed_because_somebody_kills_engines(spec: EngineSpec) -> None:
    suspects = Suspects(spec)
    for _ in range(EVIDENCE_NEEDED - 1):
        note(spec, 4)
        suspects.take_in_death(EVIDENCE_OF_A_KILL)
        assert suspects.next_group() == [4]
    assert outcomes(spec) == {}
    note(spec, 4)
    suspects.take_in_death(EVIDENCE_OF_A_KILL)
    assert outcomes(spec)[4]["finish_reason"] == "error"


def test_rows_that_were_not_running_are_no_suspects(spec: EngineSpec) -> None:
    note(spec, 1, 2, 3, 4)
    suspects = Suspects(spec)
    finish(spec, 4)
    assert suspects.take_in_death() == [1, 2, 3]
    assert suspects.next_group() == [1]
    finish(spec, 1)
    assert suspects.next_group() == [2, 3]
    finish(spec, 2, 3)
    assert suspects.next_group() is None


def test_suspicion_survives_the_supervisor(spec: EngineSpec) -> None:
    note(spec, 1, 2, 3, 4)
    Suspects(spec).take_in_death()
    assert Suspects(spec).next_group() == [1, 2]


def test_a_death_that_nobody_saw_makes_suspects_only_when_it_happens_again(spec: EngineSpec) -> None:
    note(spec, 1, 2, 3)
    assert Suspects(spec).next_group() is None
    note(spec, 2, 3, 9)
    assert Suspects(spec).next_group() == [2]


def test_deaths_are_fruitless_until_a_row_is_finished(spec: EngineSpec) -> None:
    suspects = Suspects(spec)
    for num_fruitless in (1, 2, 3):
        note(spec, 1, 2)
        suspects.take_in_death()
        assert suspects.num_fruitless == num_fruitless
    finish(spec, 8)
    note(spec, 1, 2)
    suspects.take_in_death()
    assert suspects.num_fruitless == 1


def test_where_every_row_kills_none_is_to_blame(spec: EngineSpec) -> None:
    finish(spec, 15)
    suspects = Suspects(spec)
    for _ in range(2):
        note(spec, 3)
        suspects.take_in_death()
    assert set(outcomes(spec)) == {3, 15}
    suspects.acquit()
    assert set(outcomes(spec)) == {15}
    assert suspects.next_group() is None
