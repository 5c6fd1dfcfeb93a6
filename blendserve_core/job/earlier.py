"""The run whose output lies in the job's folder: what of it stands, and what is done again."""

from __future__ import annotations

import logging
from dataclasses import replace
from zipfile import BadZipFile

from blendserve_core.data.publish import digests_path, published_parts, run_of
from blendserve_core.data.reuse import EarlierOutput
from blendserve_core.data.row_digests import PublishedDigests
from blendserve_core.job.job import Job
from blendserve_core.workspace import RETRY, Workspace, output_folder
from schemas.manifest import Manifest
from schemas.parameters import JobParameters

logger = logging.getLogger(__name__)


def num_retries(parameters: JobParameters, fingerprint: str) -> int:
    """Which run of this job is asked for: the one that is published, or with ``retry_failed`` the next, if that has errors.

    A retry that was begun goes on, also where it ended while it published and there is no manifest to tell of errors.
    """
    first = Workspace(output_folder(parameters.output), fingerprint)
    run, _, number = (run_of(first.generations) or "").partition(RETRY)
    if run != first.run:
        return 0
    published = replace(first, num_retries=int(number or 0))
    following = replace(first, num_retries=published.num_retries + 1)
    manifest = Manifest.read_if_whole(first.manifest)
    has_errors = manifest is not None and manifest.run == published.run and manifest.num_errors > 0
    is_next = parameters.retry_failed and (has_errors or following.root.exists())
    return (following if is_next else published).num_retries


def earlier_output(job: Job) -> EarlierOutput | None:
    """What another run, with other rows or other sampling, published, where its outcomes are good for this job.

    None where there is none, or where something else that changes an output is not the same: model, number format or code.
    """
    path = digests_path(job.workspace.generations)
    if not path.exists():
        return None
    try:
        digests = PublishedDigests.read(path)
    except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
        logger.warning("All rows are generated anew, as %s cannot be read: %s", path, error)
        return None
    if digests.run == job.workspace.run:
        return None
    if digests.run != run_of(job.workspace.generations) or digests.reuse_key != job.reuse_key:
        logger.info("All rows are generated anew: the last run here had another model, number format or version of BlendServe")
        return None
    return EarlierOutput(published_parts(job.workspace.generations), digests.digest, not job.parameters.retry_failed)


def forget_published(job: Job) -> None:
    """Have the next run take over nothing. The generations stay until it replaces them."""
    job.workspace.manifest.unlink(missing_ok=True)
    digests_path(job.workspace.generations).unlink(missing_ok=True)
