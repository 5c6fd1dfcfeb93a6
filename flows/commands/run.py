"""``blendserve run``: the whole job."""

from __future__ import annotations

import sys
from functools import partial

from blendserve_core.job.job import Job
from blendserve_core.job.only_run import only_run
from blendserve_core.job.prepare import prepare, start_afresh
from blendserve_core.job.report import finished_manifest, require_success
from flows.commands.ctrl_c import until_ctrl_c
from flows.commands.options import DEFAULT_OPTIONS, Columns, Fresh, Json, Options, job_parameters
from flows.commands.output import show_result
from schemas.manifest import Manifest
from schemas.parameters import JobParameters


def run(
    requests: str,
    /,
    *,
    output: str,
    column: Columns | None = None,
    options: Options = DEFAULT_OPTIONS,
    fresh: Fresh = False,
    json: Json = False,
) -> None:
    """Run the whole job in Prefect.

    Parameters
    ----------
    requests
        Parquet file, folder, glob or URI; or a Hugging Face dataset (hub id or saved folder).
    output
        Folder for generations.parquet, manifest.json and report.md.
    """
    job = prepare_job(job_parameters(requests, output, column or [], options), fresh=fresh)
    show_result(job, run_job_in_prefect(job), as_json=json)


def prepare_job(parameters: JobParameters, *, fresh: bool) -> Job:
    """Find requests and model; with ``fresh`` forget what an earlier run of the job finished."""
    with only_run(parameters):
        job = prepare(parameters)
        if fresh:
            job = start_afresh(job)
    return job


def run_job_in_prefect(job: Job) -> Manifest:
    """Run the flow, or return what it gave the last time. Raises JobFailed when too many rows ended in an error."""
    if finished := finished_manifest(job):
        print("This job is finished already; --fresh runs it again.", file=sys.stderr)
        return require_success(job, finished)
    return until_ctrl_c(job, partial(_run_flow, job))


def _run_flow(job: Job) -> Manifest:
    from flows.batch_inference import batch_inference  # Prefect takes seconds to import

    manifest = batch_inference(job.parameters)
    assert isinstance(manifest, Manifest)
    return manifest
