"""Who killed the engine: halves of what ran, until one is found that dies alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blendserve_core.data.generation import Generation
from blendserve_core.data.parts import PartWriter, read_parts
from blendserve_core.requests import RequestTable, SamplingColumns
from blendserve_core.schedule.step import StepResult
from blendserve_core.shard.in_flight import NotingExecutor, read_in_flight
from blendserve_core.shard.suspects import TWICE, Suspects
from schemas.parameters import EngineOptions
from schemas.shard import EngineSpec

NUM_REQUESTS = 16


@pytest.fixture
def spec(tmp_path: Path) -> EngineSpec:
    """An engine for requests whose rows are numbered from 100."""
    requests = RequestTable(
        row=np.arange(100, 100 + NUM_REQUESTS, dtype=np.int64),
        sample_index=np.zeros(NUM_REQUESTS, dtype=np.int32),
        prompt_start=np.arange(NUM_REQUESTS, dtype=np.int64),
        num_prompt_tokens=np.ones(NUM_REQUESTS, dtype=np.int32),
        token_ids=np.zeros(NUM_REQUESTS, dtype=np.int32),
        sampling=SamplingColumns.greedy(NUM_REQUESTS, max_tokens=4),
    )
    requests.save(tmp_path / "staged")
    (tmp_path / "engine").mkdir()
    return EngineSpec(
        rank=0,
        staged_folder=str(tmp_path / "staged"),
        plan_folder=str(tmp_path / "plan"),
        output_folder=str(tmp_path / "engine"),
        done_folders=[str(tmp_path / "engine")],
        model_folder=str(tmp_path / "model"),
        policy="first-come",
        dtype="float32",
        seed=0,
        engine=EngineOptions(),
    )


class NothingExecutor:
    """Stands for a device; what matters is what is noted before it runs."""

    capacity: Any = None

    def execute(self, step: Any) -> StepResult:
        return StepResult(token_ids=np.empty(0, dtype=np.int32), seconds=0.0)

    def close(self) -> None:
        pass


def note(spec: EngineSpec, *requests: int) -> None:
    """Have an engine compute these and then die, which leaves its note."""
    executor = NotingExecutor(NothingExecutor(), Path(spec.output_folder))
    executor.execute(SimpleNamespace(seq_ids=np.array(requests)))  # pyright: ignore[reportArgumentType]
    executor.close()


def finish(spec: EngineSpec, *requests: int) -> None:
    with PartWriter(Path(spec.output_folder)) as parts:
        parts.extend(Generation(100 + request, 0, "text", [1], "stop", 1, 0, 1) for request in requests)


def outcomes(spec: EngineSpec) -> dict[int, dict[str, Any]]:
    rows = [row for batch in read_parts([Path(spec.output_folder)]) for row in batch.to_pylist()]
    assert len({row["row"] for row in rows}) == len(rows), "a row has two outcomes"
    return {row["row"] - 100: row for row in rows}


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
