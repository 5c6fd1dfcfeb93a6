from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from blendserve_core.job import prepare as core
from blendserve_core.job.job import Job
from schemas.parameters import JobParameters


@task(name="prepare", task_run_name="prepare {parameters.title}", cache_policy=NO_CACHE)
def prepare(parameters: JobParameters) -> Job:
    return core.prepare(parameters)
