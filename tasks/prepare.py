from __future__ import annotations

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from blendserve_core.job import prepare as core
from blendserve_core.job.changes import changes_since_earlier
from blendserve_core.job.job import Job
from schemas.parameters import JobParameters
from tasks.user_errors import log_user_errors_on_one_line, user_errors

log_user_errors_on_one_line()


@task(name="prepare", task_run_name="prepare {parameters.title}", cache_policy=NO_CACHE)
def prepare(parameters: JobParameters) -> Job:
    with user_errors():
        job = core.prepare(parameters)
    if changes := changes_since_earlier(job):
        get_run_logger().warning(changes)
    return job
