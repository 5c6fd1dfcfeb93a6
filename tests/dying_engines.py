"""An engine's folder as engines leave it that finish rows and die, without a process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from blendserve_core.data.generation import Generation
from blendserve_core.data.parts import PartWriter, read_parts
from blendserve_core.requests import RequestTable, SamplingColumns
from blendserve_core.schedule.step import StepResult
from blendserve_core.shard.in_flight import NotingExecutor
from schemas.parameters import EngineOptions
from schemas.shard import EngineSpec

NUM_REQUESTS = 16


def staged_spec(tmp_path: Path) -> EngineSpec:
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
