"""Ending a job early: its engines flush what they finished and stop, wherever their supervisors run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from blendserve_core.job.job import Job
from schemas.manifest import Progress


class Interrupted(Exception):
    """The job was told to stop. Started again, it goes on from the rows that are finished."""


@contextmanager
def engines_stop_with(job: Job) -> Iterator[None]:
    """Leaving this block by an exception (a cancelled flow, Ctrl-C) tells the job's engines to stop.

    A file carries the word: supervisors may be threads here or tasks on another machine.
    """
    _stop_flag(job).unlink(missing_ok=True)
    try:
        yield
    except BaseException:
        stop_engines(job)
        raise


def stop_engines(job: Job) -> None:
    """Tell the job's engines to stop; their supervisors raise Interrupted."""
    _stop_flag(job).touch()


def until_interrupted(job: Job, on_progress: Callable[[Progress], None] | None) -> Callable[[Progress], None]:
    """Wrap a heartbeat's listener so that it raises Interrupted, which ends the engine, once the job was told to stop."""
    flag = _stop_flag(job)

    def listen(progress: Progress) -> None:
        if flag.exists():
            raise Interrupted("the job was told to stop; started again, it goes on from here")
        if on_progress is not None:
            on_progress(progress)

    return listen


def _stop_flag(job: Job) -> Path:
    return job.workspace.root / "stop"
