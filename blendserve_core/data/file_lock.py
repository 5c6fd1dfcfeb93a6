"""A lock that never outlives its holders: the kernel drops it with the last process that has the file open."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from schemas.manifest import LockHolder

logger = logging.getLogger(__name__)

POLL_S = 0.05
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)


class Locked(Exception):
    """Another process has the lock; ``holder`` is who, where that can be read."""

    def __init__(self, path: Path) -> None:
        self.holder = LockHolder.read_if_whole(path)
        super().__init__(f"{path} is locked by {self.holder or 'another process'}")


@contextmanager
def locked(path: Path, wait_s: float = 0.0) -> Iterator[int]:
    """Hold a lock on ``path``, once it is free; gives the file's descriptor, and a child that inherits it holds the lock too.

    Raises Locked when it is not free within ``wait_s``. Where the file system has no locks, that is logged and nothing is held.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(descriptor, path, time.monotonic() + wait_s)
        write_holder(descriptor, os.getpid())
        yield descriptor
    finally:
        # Closing ends our part of the lock only; unlocking would end it for a child that still writes.
        os.close(descriptor)


def write_holder(descriptor: int, pid: int) -> None:
    """Say in the locked file which process works under the lock."""
    holder = LockHolder(pid=pid, host=socket.gethostname(), since=datetime.now(UTC).isoformat(timespec="seconds"))
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, holder.model_dump_json().encode(), 0)


def _take(descriptor: int, path: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise Locked(path) from None
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
            logger.warning("%s: this file system has no locks; nothing but you keeps two runs from one output", path)
            return
        time.sleep(POLL_S)
