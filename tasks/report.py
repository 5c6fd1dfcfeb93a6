from __future__ import annotations

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from blendserve_core.job import report as core
from blendserve_core.job.job import Job
from schemas.manifest import Manifest


@task(name="report", task_run_name="write report", cache_policy=NO_CACHE)
def write_report(job: Job) -> Manifest:
    manifest = core.write_report(job)
    text = job.workspace.report.read_text(encoding="utf-8")
    create_markdown_artifact(text, key="blendserve-report", description="What the job did")
    return manifest
