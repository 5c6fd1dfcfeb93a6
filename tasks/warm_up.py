from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from blendserve_core.job import warm_up as core
from blendserve_core.job.job import Job
from schemas.manifest import EngineManifest
from tasks.progress import EngineProgress


@task(name="warm up", task_run_name="warm up on a sample", cache_policy=NO_CACHE)
def warm_up(job: Job) -> EngineManifest | None:
    return core.warm_up(job, on_progress=EngineProgress("warm-up"))
