"""A scheduled job over data that grows, with engines: its output is that of a job over all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendserve_core.job.run import run_job
from schemas.manifest import Manifest
from schemas.parameters import EngineOptions, JobParameters, SamplingDefaults

OUTPUT = ["prompt", "output_text", "output_token_ids", "finish_reason", "num_output_tokens"]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "n": 2}], ids=["greedy", "sampled"])
def test_the_union_of_two_runs_is_the_output_of_one(sampling: dict[str, Any], tiny_model_folder: Path, tmp_path: Path) -> None:
    def run(output: str) -> Manifest:
        return run_job(
            JobParameters(
                requests=str(tmp_path / "requests"),
                output=str(tmp_path / output),
                model=str(tiny_model_folder),
                dtype="float32",
                sample_fraction=0.0,
                max_error_rate=0.5,
                sampling=SamplingDefaults.model_validate({"max_tokens": 6} | sampling),
                engine=EngineOptions(kv_cache_tokens=2048, max_sequences=8, threads=1),
            )
        )

    (tmp_path / "requests").mkdir()
    write(tmp_path / "requests" / "monday.parquet", ["What is a list?", "What is a set?", ""])
    first = run("daily")
    write(tmp_path / "requests" / "tuesday.parquet", ["What is a dict?", "What is a set?"])
    second, at_once = run("daily"), run("at-once")
    assert second.num_reused_rows == first.num_rows - first.num_errors
    assert second.num_computed_output_tokens < at_once.num_computed_output_tokens
    assert pq.read_table(second.generations, columns=OUTPUT).equals(pq.read_table(at_once.generations, columns=OUTPUT))


def write(path: Path, prompts: list[str]) -> None:
    pq.write_table(pa.table({"prompt": prompts}), path)
