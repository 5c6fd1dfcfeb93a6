"""A machine that crashed may leave files empty or cut short, whatever they said; what is damaged is done again."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from blendserve_core.job.prepare import prepare
from blendserve_core.job.run import run_job
from schemas.parameters import EngineOptions, JobParameters, SamplingDefaults


@pytest.fixture
def parameters(requests_file: Path, tiny_model_folder: Path, tmp_path: Path) -> JobParameters:
    return JobParameters(
        requests=str(requests_file),
        output=str(tmp_path / "out"),
        model=str(tiny_model_folder),
        dtype="float32",
        sampling=SamplingDefaults(max_tokens=6, ignore_eos=True),
        engine=EngineOptions(kv_cache_tokens=2048, max_sequences=8, threads=1),
    )


def cut_short(path: Path, share: float = 0.5) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def test_every_damaged_file_is_done_again_and_nothing_else_is_lost(parameters: JobParameters) -> None:
    before = pq.read_table(run_job(parameters).generations)
    workspace = prepare(parameters).workspace
    part = next(workspace.shard(0).glob("part-*.parquet"))
    for path in (workspace.manifest, workspace.staged / "requests.npz", workspace.plan / "plan.npz", part):
        cut_short(path)
    for path in (workspace.shard(0) / "spec.json", workspace.generations):
        cut_short(path, share=0.0)
    after = pq.read_table(run_job(parameters).generations)
    assert after["output_token_ids"].equals(before["output_token_ids"])
    assert after["output_text"].equals(before["output_text"])
    assert (part.parent / f".damaged-{part.name}").exists()
