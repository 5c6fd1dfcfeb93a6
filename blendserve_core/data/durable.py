"""Files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NEARLY_FULL_BYTES = 1 << 20


class DiskFull(OSError):
    """A file could not be written for want of space. What was written before is whole."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            errno.ENOSPC, f"no space left on the disk of {path}; free some and run the same command again: it goes on from here"
        )

    def __str__(self) -> str:
        return str(self.strerror)


def temporary_path(path: Path) -> Path:
    """A hidden name beside ``path``, which no reader takes for data."""
    return path.with_name(f".{path.name}.tmp")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Write to the temporary name this gives; on leaving without an error the file appears under its own name, on disk.

    Raises DiskFull where there is no space for it.
    """
    temporary = temporary_path(path)
    try:
        with full_disk_named(path):
            yield temporary
            put_in_place(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def full_disk_named(path: Path) -> Iterator[None]:
    """Turn whatever a writer raises on a full disk into DiskFull: numpy and Arrow do not always pass the error's number on."""
    try:
        yield
    except OSError as error:
        is_unnumbered = error.errno is None
        if error.errno in NO_SPACE or (is_unnumbered and shutil.disk_usage(path.parent).free < NEARLY_FULL_BYTES):
            raise DiskFull(path) from error
        raise


def put_in_place(temporary: Path, path: Path) -> None:
    """Rename a finished file: first its bytes reach the disk, then its name."""
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Have a file or folder reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_arrays(path: Path, **arrays: NDArray[Any]) -> None:
    """An ``.npz`` file, whole or not at all."""
    with written_whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
