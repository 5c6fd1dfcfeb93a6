"""What becomes of a shard whose engines die, with a stand-in for the engine's process."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from dying_engines import NUM_REQUESTS, finish, note, outcomes, staged_spec

from blendserve_core.job import restarts
from blendserve_core.job.restarts import MAX_DEATHS_BEFORE_ANY_ROW, MAX_FRUITLESS_DEATHS, run_to_the_end
from blendserve_core.shard.supervise import EngineDied, EngineError
from schemas.manifest import EngineManifest
from schemas.shard import EngineSpec

NOTHING_DONE = EngineManifest.model_validate(
    {name: 0 for name in EngineManifest.model_fields if name.startswith("num_")}
    | {"rank": 0, "engine_start_s": 0.0, "generate_s": 0.0, "schedule_s": 0.0}
)


class Engines:
    """Runs four requests at a time, and dies of ``poison`` or at ``die``; counts its ``starts``."""

    def __init__(self, poison: set[int], die: Callable[[], None] = lambda: None) -> None:
        self.starts = 0
        self._poison = poison
        self._die = die

    def run(self, spec: EngineSpec, on_progress: object = None) -> EngineManifest:
        self.starts += 1
        self._die()
        left = [request for request in spec.suspects or range(NUM_REQUESTS) if request not in outcomes(spec)]
        for batch in (left[start : start + 4] for start in range(0, len(left), 4)):
            if self._poison & set(batch):
                note(spec, *batch)
                raise EngineDied("killed by SIGSEGV", -signal.SIGSEGV)
            finish(spec, *batch)
        return NOTHING_DONE


def start(engines: Engines, spec: EngineSpec, monkeypatch: pytest.MonkeyPatch) -> EngineManifest:
    monkeypatch.setattr(restarts, "run_engine", engines.run)
    return run_to_the_end(spec)


@pytest.fixture
def spec(tmp_path: Path) -> EngineSpec:
    return staged_spec(tmp_path)


def test_an_engine_that_lives_is_started_once(spec: EngineSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines(poison=set())
    start(engines, spec, monkeypatch)
    assert engines.starts == 1
    assert len(outcomes(spec)) == NUM_REQUESTS


@pytest.mark.parametrize("poison", [{0}, {5, 6}, {3, 12, 15}], ids=str)
def test_rows_that_kill_become_errors_and_all_others_are_finished(
    spec: EngineSpec, poison: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    start(Engines(poison), spec, monkeypatch)
    found = outcomes(spec)
    assert len(found) == NUM_REQUESTS
    assert {request for request, row in found.items() if row["finish_reason"] == "error"} == poison


def test_a_machine_on_which_every_row_kills_is_given_up_and_blames_none(
    spec: EngineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = Engines(set(range(NUM_REQUESTS)))
    with pytest.raises(EngineError, match=r"32 engines in a row died without finishing a row.*SIGSEGV"):
        start(engines, spec, monkeypatch)
    assert engines.starts == MAX_FRUITLESS_DEATHS
    assert outcomes(spec) == {}


@pytest.mark.parametrize(("status", "num_starts"), [(1, 1), (-signal.SIGKILL, MAX_DEATHS_BEFORE_ANY_ROW)])
def test_an_engine_that_dies_before_any_row_is_not_started_for_ever(
    spec: EngineSpec, status: int, num_starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die() -> None:
        raise EngineDied("no such model", status)

    engines = Engines(set(), die)
    with pytest.raises(EngineDied, match="no such model"):
        start(engines, spec, monkeypatch)
    assert engines.starts == num_starts
