"""Before a job goes on: engines of a run that was killed are gone, and what they left is in order."""

from __future__ import annotations

from blendserve_core.job.attempts import remember_attempt
from blendserve_core.job.job import Job
from blendserve_core.shard.claims import drop_damaged_claims
from blendserve_core.shard.folder import settle
from blendserve_core.shard.work import CLAIMS_FOLDER


def settle_engines(job: Job) -> None:
    """Wait for engines that still write what they finished. Raises FolderBusy where one cannot be ended from here.

    Where finished rows are lost, because the machine or the disk failed, no shard counts as done.
    """
    folders = job.workspace.engine_folders
    are_damaged = [settle(folder) for folder in folders]
    if any(are_damaged):
        for folder in folders:
            remember_attempt(folder)
    drop_damaged_claims(job.workspace.plan / CLAIMS_FOLDER)
