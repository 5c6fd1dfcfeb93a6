"""Files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def temporary_path(path: Path) -> Path:
    """A hidden name beside ``path``, which no reader takes for data."""
    return path.with_name(f".{path.name}.tmp")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Write to the temporary name this gives; on leaving without an error the file appears under its own name, on disk."""
    temporary = temporary_path(path)
    try:
        yield temporary
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    put_in_place(temporary, path)


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
