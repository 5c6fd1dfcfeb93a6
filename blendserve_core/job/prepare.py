"""Before anything costly: the requests are found, the model is at hand, and the job gets its fingerprint."""

from __future__ import annotations

import shutil

from blendserve_core.data.check import check_columns
from blendserve_core.data.fingerprint import fingerprint_parts, job_fingerprint, lengths_key, reuse_key
from blendserve_core.data.source import open_source
from blendserve_core.engine.model.folder import resolve_model
from blendserve_core.job.earlier import forget_published, num_retries
from blendserve_core.job.job import Job
from blendserve_core.job.upload import check_output
from blendserve_core.shard.folder import settle
from schemas.credentials import refuse_credentials
from schemas.parameters import JobParameters


def prepare(parameters: JobParameters) -> Job:
    """Find the requests and the model. What makes the whole job senseless ends here, as a ValueError or an OSError."""
    refuse_credentials("requests", parameters.requests)
    refuse_credentials("output", parameters.output)
    check_output(parameters)
    source = open_source(parameters)
    check_columns(source.schema, parameters)
    model_folder = resolve_model(parameters.model, parameters.model_revision)
    parts = fingerprint_parts(parameters, source.digest, model_folder)
    fingerprint = job_fingerprint(parts)
    job = Job(
        parameters=parameters,
        model_folder=model_folder,
        fingerprint=fingerprint,
        lengths_key=lengths_key(parameters, parts),
        parts=parts,
        reuse_key=reuse_key(parts),
        num_retries=num_retries(parameters, fingerprint),
    )
    job.write(job.workspace.record)
    return job


def start_afresh(job: Job) -> Job:
    """Forget what earlier runs of this job finished and published, once their engines are gone; the job as it begins again."""
    for run in job.workspace.all_runs:
        for folder in run.engine_folders:
            settle(folder)
        shutil.rmtree(run.root, ignore_errors=True)
    forget_published(job)
    afresh = job.model_copy(update={"num_retries": 0})
    afresh.write(afresh.workspace.record)
    return afresh
