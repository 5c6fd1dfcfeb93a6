"""The main job up to its plan: what it would cost, before an engine is started."""

from __future__ import annotations

from typing import Any

from prefect import flow

from blendserve_core.job.only_run import only_run
from schemas.parameters import JobParameters
from tasks.plan import preview_plan
from tasks.prepare import prepare
from tasks.stage import stage


@flow(name="plan-only", flow_run_name="plan {parameters.title}")
def plan_only(parameters: JobParameters) -> dict[str, Any]:
    """Plan a job and generate nothing. The plan is shown as an artifact; a later run finds the staged requests."""
    with only_run(parameters):
        job = prepare(parameters)
        stage(job)
        return preview_plan(job)
