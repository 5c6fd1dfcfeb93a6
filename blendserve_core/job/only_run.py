"""One run at a time for an output: a second one is refused, and a dead one stands in nobody's way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from blendserve_core.data.file_lock import Locked, locked
from blendserve_core.workspace import output_folder
from schemas.parameters import JobParameters

LOCK_FILE = "work/lock"


class OutputBusy(Exception):
    """Another process works on the same output."""


@contextmanager
def only_run(parameters: JobParameters) -> Iterator[None]:
    """Within this block no other process works on the job's output. Raises OutputBusy naming the one that does."""
    folder = output_folder(parameters.output)
    try:
        with locked(folder / LOCK_FILE):
            yield
    except Locked as busy:
        raise OutputBusy(
            f"{parameters.output} is in use by {busy.holder or 'another process'}. Wait for it, end it, or name another output."
        ) from None
