"""The main job as a Prefect flow: stage, warm up, plan, generate per shard, publish, report."""

from __future__ import annotations

from prefect import State, flow
from prefect.futures import wait
from prefect.states import Completed

from blendserve_core.job.interrupt import engines_stop_with
from blendserve_core.job.job import Job
from blendserve_core.job.only_run import only_run
from blendserve_core.job.report import finished_manifest, require_success
from blendserve_core.job.settle import settle_engines
from schemas.manifest import Manifest
from schemas.parameters import JobParameters
from tasks.generate import generate_shard
from tasks.plan import make_plan
from tasks.prepare import prepare
from tasks.publish import publish
from tasks.report import write_report
from tasks.stage import stage
from tasks.warm_up import warm_up


# Prefect's own task runner gives each shard a thread, which is all that looking after an engine process takes.
@flow(name="batch-inference", flow_run_name="{parameters.title}")
def batch_inference(parameters: JobParameters) -> Manifest | State[Manifest]:
    """Generate a text for every row of a dataset.

    Started again with the same parameters, a job goes on where it stopped: finished rows are kept. It ends as Completed, as
    CompletedWithErrors when some rows could not be served, or as Failed when more of them than `max_error_rate`.
    """
    with only_run(parameters):
        job = prepare(parameters)
        manifest = require_success(job, finished_manifest(job) or _run_stages(job))
    if manifest.num_errors:
        message = f"{manifest.num_errors} of {manifest.num_rows} rows are errors"
        return Completed(name="CompletedWithErrors", message=message, data=manifest)
    return manifest


def _run_stages(job: Job) -> Manifest:
    settle_engines(job)
    stage(job)
    with engines_stop_with(job):
        warm_up(job)
        plan = make_plan(job)
        _generate(job, num_shards=len(plan["shards"]))
    publish(job)
    return write_report(job)


def _generate(job: Job, num_shards: int) -> None:
    """Run the shards side by side; one that fails does not stop the others, whose rows are results all the same."""
    futures = [generate_shard.submit(job, rank) for rank in range(num_shards)]
    wait(futures)
    for future in futures:
        future.result()
