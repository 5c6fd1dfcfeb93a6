"""The whole job as one call, for a notebook: the flow without Prefect."""

from __future__ import annotations

import logging

from blendserve_core.job.changes import changes_since_earlier
from blendserve_core.job.generation import generate_all
from blendserve_core.job.interrupt import engines_stop_with
from blendserve_core.job.job import Job
from blendserve_core.job.only_run import only_run
from blendserve_core.job.planning import make_job_plan
from blendserve_core.job.prepare import prepare
from blendserve_core.job.publishing import publish_generations
from blendserve_core.job.report import finished_manifest, require_success, write_report
from blendserve_core.job.settle import settle_engines
from blendserve_core.job.staging import stage_requests
from blendserve_core.job.warm_up import warm_up
from schemas.manifest import Manifest
from schemas.parameters import JobParameters

logger = logging.getLogger(__name__)


def run_job(parameters: JobParameters) -> Manifest:
    """Generate a text for every row and return what the job did; its files are in ``parameters.output``.

    A job that was stopped goes on where it stopped, and a finished one returns at once. Raises ValueError or OSError for
    requests or a model that make no sense, OutputBusy while another process works on the same output, EngineError when an
    engine cannot run, and JobFailed when too many rows ended in an error.
    """
    with only_run(parameters):
        job = prepare(parameters)
        if changes := changes_since_earlier(job):
            logger.warning(changes)
        return require_success(job, finished_manifest(job) or _run_stages(job))


def _run_stages(job: Job) -> Manifest:
    settle_engines(job)
    stage_requests(job)
    with engines_stop_with(job):
        warm_up(job)
        plan = make_job_plan(job)
        generate_all(job, len(plan.shards))
    publish_generations(job)
    return write_report(job)
