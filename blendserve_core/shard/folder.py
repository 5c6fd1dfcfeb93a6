"""An engine's folder belongs to one engine at a time, also when the flow that started it is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from blendserve_core.data.file_lock import Locked, locked
from blendserve_core.data.recover import recover
from schemas.manifest import LockHolder

LOCK_FILE = "lock"
SPEC_FILE = "spec.json"

# An engine that is told to stop has this long to write what it finished.
GRACE_S = 20.0
KILLED_WITHIN_S = 5.0


class FolderBusy(OSError):
    """An engine of an earlier run still works in the folder, where this run cannot end it."""


@contextmanager
def engine_folder(folder: Path) -> Iterator[int]:
    """Have an engine's folder to oneself; gives the descriptor of its lock, which the engine has to inherit.

    An engine whose flow was killed writes what it finished and ends: that is waited for, and one that does not end is killed.
    Raises FolderBusy when it lives on, say on another machine.
    """
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(locked(folder / LOCK_FILE, GRACE_S))
        except Locked as busy:
            _kill(busy.holder, folder)
            lock = _lock_at_last(folder, stack)
        yield lock


def settle(folder: Path) -> bool:
    """Wait until no engine works in this folder, and put it in order. Returns whether finished rows are lost."""
    if not folder.exists():
        return False
    with engine_folder(folder):
        return recover(folder)


def _lock_at_last(folder: Path, stack: contextlib.ExitStack) -> int:
    try:
        return stack.enter_context(locked(folder / LOCK_FILE, KILLED_WITHIN_S))
    except Locked as busy:
        raise FolderBusy(f"{folder}: an engine of an earlier run still works here ({busy.holder}); end it first") from None


def _kill(holder: LockHolder | None, folder: Path) -> None:
    """End this folder's engine for good, if that is what the holder of its lock is."""
    if holder is None or holder.host != socket.gethostname():
        return
    with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
        if str(folder / SPEC_FILE) in psutil.Process(holder.pid).cmdline():
            os.killpg(holder.pid, signal.SIGKILL)
