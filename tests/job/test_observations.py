from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendserve_core.job.observations import observe_outputs
from blendserve_core.shard.unfinished import save_unfinished
from schemas.arrow import GENERATION_SCHEMA

# Three rows of two samples each: requests 0 to 5.
REQUESTS: Any = SimpleNamespace(row=np.array([0, 0, 4, 4, 7, 7]), sample_index=np.array([0, 1] * 3, dtype=np.int32))


def generation(row: int, sample_index: int, num_output_tokens: int, finish_reason: str = "stop") -> dict[str, Any]:
    return {
        "row": row,
        "sample_index": sample_index,
        "num_output_tokens": num_output_tokens,
        "finish_reason": finish_reason,
    }


def write_part(folder: Path, *generations: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(generations), schema=GENERATION_SCHEMA), folder / "part-00000.parquet")


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    write_part(tmp_path / "warm_up", generation(7, 1, 30), generation(0, 0, 5))
    write_part(tmp_path / "shard-00000", generation(4, 0, 9), generation(4, 1, 0, "error"))
    return [tmp_path / "warm_up", tmp_path / "shard-00000"]


def test_finished_outputs_of_all_engines_are_seen_and_errors_are_not(folders: list[Path]) -> None:
    seen = observe_outputs(REQUESTS, folders)
    assert dict(zip(seen.request.tolist(), seen.num_tokens.tolist(), strict=True)) == {5: 30, 0: 5, 2: 9}
    assert seen.is_finished.all()


def test_an_unfinished_output_counts_as_at_least_as_long(folders: list[Path]) -> None:
    save_unfinished(folders[0], {4: np.arange(12, dtype=np.int32), 2: np.arange(3, dtype=np.int32)})
    seen = observe_outputs(REQUESTS, folders)
    unfinished = {r: n for r, n, done in zip(seen.request, seen.num_tokens, seen.is_finished, strict=True) if not done}
    assert unfinished == {4: 12}


def test_nothing_is_seen_before_the_first_engine(tmp_path: Path) -> None:
    seen = observe_outputs(REQUESTS, [tmp_path / "warm_up"])
    assert len(seen.request) == len(seen.num_tokens) == len(seen.is_finished) == 0
