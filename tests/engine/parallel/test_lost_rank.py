"""A job of two shards, each a tensor-parallel group of two processes, of which one loses a rank."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tiny_requests import write_requests

from blendserve_core.data.parts import finished_keys
from blendserve_core.engine.load import load_cpu_executor
from blendserve_core.job.attempts import engine_runs
from blendserve_core.job.job import Job
from blendserve_core.job.prepare import prepare
from blendserve_core.job.run import run_job
from blendserve_core.kv.segments import no_segments
from blendserve_core.requests import RequestTable
from blendserve_core.run import run_steps
from blendserve_core.schedule.policies.ordered import OrderedAdmission
from blendserve_core.schedule.scheduler import Scheduler
from blendserve_core.shard import supervise
from schemas.parameters import EngineOptions, JobParameters, SamplingDefaults

HELPERS = [Path(__file__).parent, Path(__file__).parents[1] / "cuda"]
LOSER, OTHER = 0, 1


@pytest.fixture
def job(tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """One request at a time, lest many are suspected of what happens."""
    parameters = JobParameters(
        requests=str(write_requests(tmp_path / "requests.parquet")),
        output=str(tmp_path / "out"),
        model=str(tiny_model_folder),
        dtype="float32",
        shards=2,
        sample_fraction=0.0,
        sampling=SamplingDefaults(max_tokens=12, temperature=1.0, ignore_eos=True),
        engine=EngineOptions(tensor_parallel=2, kv_cache_tokens=1024, max_sequences=1, max_step_tokens=64, threads=1),
    )
    job = prepare(parameters)
    monkeypatch.setattr(supervise, "WORKER_MODULE", "stand_in_worker")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*map(str, HELPERS), os.environ.get("PYTHONPATH", "")]))
    (job.workspace.root / "lost_rank.json").write_text(json.dumps({"shard": LOSER, "step": 16}))
    return job


def tokens_on_cpu(job: Job) -> list[list[int]]:
    """What one CPU engine gives in this process, row by row."""
    requests = RequestTable.load(job.workspace.staged)
    executor = load_cpu_executor(job.model_folder, requests, "float32", EngineOptions(threads=1, kv_cache_tokens=1024))
    order, segments = np.arange(requests.num_requests), no_segments(requests.num_requests)
    scheduler = Scheduler(requests, order, segments, order, OrderedAdmission(order), executor.capacity, ())
    finished = {end.request: end.token_ids.tolist() for record in run_steps(scheduler, executor) for end in record.finished}
    return [finished[request] for request in np.argsort(requests.row).tolist()]


def test_its_group_ends_with_an_error_that_names_it_and_is_started_again_and_the_other_group_never_notices(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        manifest = run_job(job.parameters)
    deaths = [record.getMessage() for record in caplog.records if "ran when this happened" in record.getMessage()]
    assert len(deaths) == 1
    assert f"the engine of shard {LOSER} ended with status 1" in deaths[0]
    assert f"rank 1 of tensor-parallel group {LOSER}, of 2 ranks, has died (killed by SIGKILL)" in deaths[0]
    assert len(engine_runs(job.workspace.shard(LOSER))) > 1
    assert len(engine_runs(job.workspace.shard(OTHER))) == 1
    assert "RankLostError" not in (job.workspace.shard(OTHER) / "engine.log").read_text()
    assert manifest.num_errors == 0
    tokens = tokens_on_cpu(job)
    assert len(finished_keys(job.workspace.engine_folders)[0]) == len(tokens), "a row was lost or generated twice"
    assert pq.read_table(manifest.generations)["output_token_ids"].to_pylist() == tokens
