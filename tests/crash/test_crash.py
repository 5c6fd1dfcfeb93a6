"""Engine, flow and both are killed at random moments; the job ends with what it would have had undisturbed.

All jobs use float32: in bfloat16 a token may depend on which others share its step, and so on when somebody was killed. On the
demo model they are greedy, too: float32 rounds differently in other company as well, by about 1e-6 of a probability, and with
49,000 tokens one draw in some thousand lies that close to the next token.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from killed_job import KilledJob

from blendserve_core.job.run import run_job
from schemas.parameters import EngineOptions, JobParameters, SamplingDefaults

NUM_KILLS = 50
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


def parameters(requests: Path, output: Path, model: str, temperature: float = 1.0) -> JobParameters:
    return JobParameters(
        requests=str(requests),
        output=str(output),
        model=model,
        dtype="float32",
        shards=2,
        sample_fraction=0.0,
        sampling=SamplingDefaults(temperature=temperature, seed=3),
        engine=EngineOptions(kv_cache_tokens=2048, max_sequences=4, threads=1),
    )


def generated(output: Path) -> pa.Table:
    return pq.read_table(output / "generations.parquet").select(["prompt", *GENERATED])


def differences(found: pa.Table, expected: pa.Table) -> list[tuple[int, dict, dict]]:
    """Row number, what was found and what was expected, of the rows that differ."""
    pairs = enumerate(zip(found.to_pylist(), expected.to_pylist(), strict=True))
    return [(row, one, other) for row, (one, other) in pairs if one != other]


def test_a_job_that_is_killed_a_few_times_ends_as_if_it_never_was(tiny_model_folder: Path, tmp_path: Path) -> None:
    requests = write_requests(tmp_path / "requests.parquet", num_rows=60, max_tokens=60)
    run_job(parameters(requests, tmp_path / "undisturbed", str(tiny_model_folder)))
    job = KilledJob(parameters(requests, tmp_path / "killed", str(tiny_model_folder)), seed=0)
    job.run(num_kills=4)
    assert differences(generated(tmp_path / "killed"), generated(tmp_path / "undisturbed")) == []


@pytest.mark.crash
@pytest.mark.parametrize(("model", "num_rows", "max_tokens", "temperature"), [("tiny", 600, 120, 1.0), ("demo", 160, 24, 0.0)])
def test_fifty_kills_change_no_byte(
    model: str, num_rows: int, max_tokens: int, temperature: float, tiny_model_folder: Path, tmp_path: Path
) -> None:
    folder = str(tiny_model_folder) if model == "tiny" else model
    requests = write_requests(tmp_path / "requests.parquet", num_rows, max_tokens)
    run_job(parameters(requests, tmp_path / "undisturbed", folder, temperature))
    expected, kills = generated(tmp_path / "undisturbed"), Counter()
    for seed in range(50):
        job = KilledJob(parameters(requests, tmp_path / f"killed-{seed}", folder, temperature), seed)
        job.run(NUM_KILLS - kills.total())
        assert differences(generated(tmp_path / f"killed-{seed}"), expected) == [], dict(job.kills)
        kills += job.kills
        print(f"{model}: {dict(kills)} killed in {seed + 1} jobs", flush=True)
        if kills.total() >= NUM_KILLS:
            return
    pytest.fail(f"jobs end too soon to be killed {NUM_KILLS} times: {dict(kills)}")
