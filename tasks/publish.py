from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from blendserve_core.job.job import Job
from blendserve_core.job.publishing import publish_generations
from schemas.manifest import PublishManifest


@task(name="publish", task_run_name="publish generations", cache_policy=NO_CACHE)
def publish(job: Job) -> PublishManifest:
    return publish_generations(job)
