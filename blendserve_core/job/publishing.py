"""Publish: finished rows and error rows, put back in input order beside the input's own columns."""

from __future__ import annotations

from time import perf_counter

from blendserve_core.data.publish import publish
from blendserve_core.job.job import Job
from blendserve_core.job.remembered_lengths import remember_lengths
from schemas.manifest import PublishManifest


def publish_generations(job: Job) -> PublishManifest:
    """Write ``generations.parquet`` anew from what is on disk, and keep the outputs' lengths for later jobs.

    Raises when a row has no outcome yet.
    """
    started = perf_counter()
    workspace = job.workspace
    # Should this run end before its own manifest is written, an earlier job's must not stand beside these generations.
    workspace.manifest.unlink(missing_ok=True)
    folders, output = workspace.engine_folders, workspace.generations
    counts = publish(workspace.staged, folders, output, run=workspace.run, reuse_key=job.reuse_key)
    manifest = PublishManifest(**counts.model_dump(), publish_s=perf_counter() - started)
    manifest.write(workspace.root / "published.json")
    remember_lengths(job)
    return manifest
