from __future__ import annotations

from pathlib import Path

import pytest

from blendserve_core.job.interrupt import Interrupted, engines_stop_with, until_interrupted
from blendserve_core.job.job import Job
from schemas.manifest import Progress
from schemas.parameters import JobParameters

HEARTBEAT = Progress(
    phase="generate",
    num_finished=0,
    num_total=1,
    num_running=1,
    num_output_tokens=0,
    num_computed_tokens=0,
    elapsed_s=0.0,
    updated_at=0.0,
)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    parameters = JobParameters(requests="requests.parquet", output=str(tmp_path / "out"))
    made = Job(parameters=parameters, model_folder=tmp_path / "model", fingerprint="0123456789abcdef" * 4, lengths_key="fedcba")
    made.workspace.root.mkdir(parents=True)
    return made


def test_leaving_by_an_exception_ends_the_engines_at_their_next_heartbeat(job: Job) -> None:
    with pytest.raises(KeyboardInterrupt), engines_stop_with(job):
        raise KeyboardInterrupt
    with pytest.raises(Interrupted):
        until_interrupted(job, None)(HEARTBEAT)


def test_heartbeats_pass_while_nobody_says_stop(job: Job) -> None:
    seen: list[Progress] = []
    with engines_stop_with(job):
        until_interrupted(job, seen.append)(HEARTBEAT)
    until_interrupted(job, seen.append)(HEARTBEAT)
    assert seen == [HEARTBEAT, HEARTBEAT]


def test_a_job_started_again_forgets_that_it_was_stopped(job: Job) -> None:
    with pytest.raises(ValueError, match="boom"), engines_stop_with(job):
        raise ValueError("boom")
    with engines_stop_with(job):
        until_interrupted(job, None)(HEARTBEAT)


def test_a_job_survives_being_written_down(job: Job) -> None:
    assert Job.model_validate_json(job.model_dump_json()) == job
