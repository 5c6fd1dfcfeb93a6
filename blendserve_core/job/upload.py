"""An output on an object store: the job works in a local folder, and puts each finished file there once, its manifest last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
from fsspec.core import url_to_fs

from blendserve_core.job.job import Job
from blendserve_core.workspace import is_remote
from schemas.manifest import Manifest
from schemas.parameters import JobParameters


def check_output(parameters: JobParameters) -> None:
    """Raise ValueError for an output URL that nothing here can write to, before anything is generated."""
    if is_remote(parameters.output):
        try:
            url_to_fs(parameters.output)
        except (ImportError, ValueError) as error:
            raise ValueError(f"{parameters.output}: cannot be written to: {error}") from error


def upload(job: Job, manifest: Manifest) -> None:
    """Put generations, report and manifest of a finished job where its output is; nothing to do for a local one.

    A reader that waits for the manifest sees all of one job: an earlier job's manifest goes first.
    """
    if not is_remote(job.parameters.output):
        return
    fs, root = _remote(job)
    for name in (job.workspace.manifest.name, job.workspace.generations.name):
        if fs.exists(f"{root}/{name}"):
            fs.rm(f"{root}/{name}", recursive=True)
    for path in [*_files(job.workspace.generations), job.workspace.report]:
        fs.put_file(str(path), f"{root}/{path.relative_to(job.workspace.output)}")
    fs.pipe_file(f"{root}/{job.workspace.manifest.name}", _as_seen_there(job, manifest).model_dump_json(indent=2).encode())


def is_uploaded(job: Job) -> bool:
    """Whether the job's manifest is where its output is."""
    if not is_remote(job.parameters.output):
        return True
    fs, root = _remote(job)
    return fs.exists(f"{root}/{job.workspace.manifest.name}")


def _remote(job: Job) -> tuple[fsspec.AbstractFileSystem, str]:
    fs, root = url_to_fs(job.parameters.output)
    fs.invalidate_cache()
    return fs, root.rstrip("/")


def _files(path: Path) -> Iterator[Path]:
    return (file for file in sorted(path.rglob("*")) if file.is_file()) if path.is_dir() else iter([path])


def _as_seen_there(job: Job, manifest: Manifest) -> Manifest:
    root = job.parameters.output.rstrip("/")
    names = {"generations": job.workspace.generations.name, "report": job.workspace.report.name}
    return manifest.model_copy(update={field: f"{root}/{name}" for field, name in names.items()})
