"""A job that starts from nothing beside finished work says why."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendserve_core.job.changes import changes_since_earlier, part_differences
from blendserve_core.job.job import Job
from blendserve_core.job.prepare import prepare
from schemas.parameters import JobParameters, SamplingDefaults


@pytest.fixture
def parameters(requests_file: Path, tiny_model_folder: Path, tmp_path: Path) -> JobParameters:
    return JobParameters(requests=str(requests_file), output=str(tmp_path / "out"), model=str(tiny_model_folder))


def has_run(job: Job, when: int) -> Job:
    """Leave behind what a job does that has staged its requests."""
    job.workspace.staged.mkdir(parents=True)
    (job.workspace.staged / "manifest.json").touch()
    os.utime(job.workspace.record, (when, when))
    return job


def test_the_first_job_and_one_that_goes_on_have_nothing_to_say(parameters: JobParameters) -> None:
    assert changes_since_earlier(prepare(parameters)) == ""
    has_run(prepare(parameters), when=1_000_000_000)
    assert changes_since_earlier(prepare(parameters)) == ""


def test_a_changed_option_is_named_with_its_values(parameters: JobParameters) -> None:
    has_run(prepare(parameters), when=1_000_000_000)
    changed = parameters.model_copy(update={"sampling": SamplingDefaults(temperature=0.5), "dtype": "float32"})
    said = changes_since_earlier(prepare(changed))
    assert "sampling.temperature (0.0 before, now 0.5)" in said
    assert 'dtype ("bfloat16" before, now "float32")' in said
    assert said.endswith("Nothing of that run is used.")
    assert "2001-09-09 01:46 UTC" in said


def test_changed_rows_are_named_without_their_digest(parameters: JobParameters) -> None:
    has_run(prepare(parameters), when=1_000_000_000)
    pq.write_table(pa.table({"prompt": ["another"]}), parameters.requests)
    assert "there changed requests. Published rows that ask for the same" in changes_since_earlier(prepare(parameters))


def test_the_job_that_ran_last_is_the_one_compared_with(parameters: JobParameters) -> None:
    for seed, when in ((1, 1_000_000_000), (2, 1_100_000_000), (3, 900_000_000)):
        has_run(prepare(parameters.model_copy(update={"sampling": SamplingDefaults(seed=seed)})), when)
    assert "sampling.seed (2 before, now 0)" in changes_since_earlier(prepare(parameters))


def test_parts_that_only_one_job_knows_are_differences_too() -> None:
    assert part_differences({"a": "1", "b": "2"}, {"b": "2", "c": "3"}) == ["a (1 before, now none)", "c (none before, now 3)"]
