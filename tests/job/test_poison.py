"""A row that kills its engine, in a job of two shards whose engines are real processes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tiny_requests import write_requests

from blendserve_core.data.parts import finished_keys
from blendserve_core.job.attempts import engine_runs
from blendserve_core.job.job import Job
from blendserve_core.job.prepare import prepare
from blendserve_core.job.run import run_job
from blendserve_core.plan.plan import Plan
from blendserve_core.shard import supervise
from blendserve_core.shard.suspects import SUSPECTS_FILE, TWICE
from schemas.parameters import EngineOptions, JobParameters, SamplingDefaults

POISON = 5


@pytest.fixture
def job(tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job whose engines die of request 5, two requests at a time."""
    parameters = JobParameters(
        requests=str(write_requests(tmp_path / "requests.parquet")),
        output=str(tmp_path / "out"),
        limit=6,
        model=str(tiny_model_folder),
        dtype="float32",
        shards=2,
        sample_fraction=0.0,
        max_error_rate=0.2,
        sampling=SamplingDefaults(max_tokens=6),
        engine=EngineOptions(kv_cache_tokens=2048, max_sequences=2, threads=1),
    )
    monkeypatch.setattr(supervise, "WORKER_MODULE", "poisoned_worker")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    prepared = prepare(parameters)
    poison = {"requests": [POISON], "signal": signal.SIGSEGV}
    (prepared.workspace.root / "poison.json").write_text(json.dumps(poison))
    return prepared


def test_the_row_becomes_an_error_its_shard_goes_on_and_the_other_shard_never_notices(job: Job) -> None:
    manifest = run_job(job.parameters)
    rows = pq.read_table(manifest.generations).to_pylist()
    errors = {number: row["error"] for number, row in enumerate(rows) if row["error"]}
    assert errors == {POISON: {"type": "engine_died", "message": TWICE, "stage": "generate"}}
    assert (manifest.num_rows, manifest.num_errors) == (6, 1)
    finished = finished_keys(job.workspace.engine_folders)[0].tolist()
    assert sorted(finished) == list(range(6)), "a row that was finished was generated again"
    plan = Plan.load(job.workspace.plan)
    poisoned = next(shard.rank for shard in plan.shards if POISON in shard.order)
    other = job.workspace.shard(1 - poisoned)
    assert (job.workspace.shard(poisoned) / SUSPECTS_FILE).exists()
    assert not (other / SUSPECTS_FILE).exists()
    assert len(engine_runs(other)) == 1
