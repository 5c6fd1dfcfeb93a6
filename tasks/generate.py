from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from blendserve_core.job import generation as core
from blendserve_core.job.job import Job
from schemas.manifest import EngineManifest
from tasks.progress import EngineProgress


@task(name="generate", task_run_name="generate shard {rank}", cache_policy=NO_CACHE)
def generate_shard(job: Job, rank: int) -> EngineManifest:
    return core.generate_shard(job, rank, on_progress=EngineProgress(f"shard {rank}"))
