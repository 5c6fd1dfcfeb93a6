"""Engine, flow and both are killed at random moments; the job ends with what it would have had undisturbed.

Both jobs use float32: in bfloat16 a token may depend on which others share its step, and so on when somebody was killed.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from killed_job import KilledJob

from blendserve_core.job.run import run_job
from schemas.parameters import EngineOptions, JobParameters, SamplingDefaults

GENERATED = ["output_text", "output_token_ids", "finish_reason", "num_prompt_tokens", "num_output_tokens", "error"]


def write_requests(path: Path, num_rows: int, max_tokens: int) -> Path:
    """Prompts that share a beginning, with outputs of forced lengths."""
    rows = range(num_rows)
    table = {
        "prompt": [f"You are brief. Write about number {row}." for row in rows],
        "max_tokens": [1 + row * 7 % max_tokens for row in rows],
        "ignore_eos": [True] * num_rows,
    }
    pq.write_table(pa.table(table), path)
    return path


def parameters(requests: Path, output: Path, model: str) -> JobParameters:
    return JobParameters(
        requests=str(requests),
        output=str(output),
        model=model,
        dtype="float32",
        shards=2,
        sample_fraction=0.0,
        sampling=SamplingDefaults(temperature=1.0, seed=3),
        engine=EngineOptions(kv_cache_tokens=2048, max_sequences=4, threads=1),
    )


def generated(output: Path) -> pa.Table:
    return pq.read_table(output / "generations.parquet").select(["prompt", *GENERATED])


def test_a_job_that_is_killed_a_few_times_ends_as_if_it_never_was(tiny_model_folder: Path, tmp_path: Path) -> None:
    requests = write_requests(tmp_path / "requests.parquet", num_rows=60, max_tokens=60)
    run_job(parameters(requests, tmp_path / "undisturbed", str(tiny_model_folder)))
    job = KilledJob(parameters(requests, tmp_path / "killed", str(tiny_model_folder)), seed=0)
    job.run(num_kills=4)
    assert generated(tmp_path / "killed").equals(generated(tmp_path / "undisturbed"))


@pytest.mark.crash
def test_fifty_kills_of_jobs_on_the_demo_model_change_no_byte(tmp_path: Path) -> None:
    requests = write_requests(tmp_path / "requests.parquet", num_rows=120, max_tokens=12)
    run_job(parameters(requests, tmp_path / "undisturbed", "demo"))
    expected, num_left, seed = generated(tmp_path / "undisturbed"), 50, 0
    while num_left > 0:
        output = tmp_path / f"killed-{seed}"
        job = KilledJob(parameters(requests, output, "demo"), seed)
        job.run(num_left)
        assert generated(output).equals(expected)
        num_left -= job.kills.total()
        seed += 1
        print(f"{dict(job.kills)} killed, {num_left} to go", flush=True)
