from __future__ import annotations

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from blendserve_core.job.job import Job
from blendserve_core.job.staging import stage_requests
from schemas.manifest import StageManifest
from tasks.user_errors import user_errors


@task(name="stage", task_run_name="stage requests", cache_policy=NO_CACHE)
def stage(job: Job) -> StageManifest:
    with user_errors():
        staged = stage_requests(job)
    get_run_logger().info(
        "%s rows, %s prompt tokens; %s sequences to generate, %s copies of those, %s kept from an earlier run, %s errors",
        f"{staged.num_requests:,}",
        f"{staged.num_prompt_tokens:,}",
        f"{staged.num_sequences:,}",
        f"{staged.num_duplicates:,}",
        f"{staged.num_reused:,}",
        f"{staged.num_errors:,}",
    )
    return staged
