from __future__ import annotations

from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from blendserve_core.job import planning as core
from blendserve_core.job.job import Job
from blendserve_core.plan.describe import describe
from blendserve_core.plan.plan import Plan


@task(name="plan", task_run_name="plan, policy {job.parameters.policy}", cache_policy=NO_CACHE)
def make_plan(job: Job) -> dict[str, Any]:
    return _show(core.make_job_plan(job))


@task(name="preview plan", task_run_name="preview the plan, policy {job.parameters.policy}", cache_policy=NO_CACHE)
def preview_plan(job: Job) -> dict[str, Any]:
    return _show(core.preview_plan(job))


def _show(plan: Plan) -> dict[str, Any]:
    """Keep the plan as an artifact; only its summary passes on, the arrays are on disk."""
    create_markdown_artifact(f"```text\n{describe(plan)}\n```", key="blendserve-plan", description="What the job will cost")
    return plan.as_dict()
