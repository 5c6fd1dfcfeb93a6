"""Before anything costly: the requests are found, the model is at hand, and the job gets its fingerprint."""

from __future__ import annotations

import shutil

from blendserve_core.data.check import check_columns
from blendserve_core.data.fingerprint import fingerprint_parts, job_fingerprint, lengths_key
from blendserve_core.data.source import open_source
from blendserve_core.engine.model.folder import resolve_model
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
    job = Job(
        parameters=parameters,
        model_folder=model_folder,
        fingerprint=job_fingerprint(parts),
        lengths_key=lengths_key(parameters, parts),
        parts=parts,
    )
    job.write(job.workspace.record)
    return job


def start_afresh(job: Job) -> None:
    """Forget all that earlier runs of this job finished, once their engines are gone."""
    for folder in job.workspace.engine_folders:
        settle(folder)
    shutil.rmtree(job.workspace.root, ignore_errors=True)
    job.workspace.manifest.unlink(missing_ok=True)
    job.write(job.workspace.record)
