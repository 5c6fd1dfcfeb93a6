"""A lock is held by one, and by nobody who is dead."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from blendserve_core.data import file_lock
from blendserve_core.data.file_lock import Locked, locked

HOLD = """
import sys, time
from pathlib import Path
from blendserve_core.data.file_lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def take(path: Path, wait_s: float = 0.0) -> bool:
    with locked(path, wait_s):
        return True


def test_the_second_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    with locked(tmp_path / "lock"):
        with pytest.raises(Locked, match=rf"process {os.getpid()} on .*, since 20") as refused:
            take(tmp_path / "lock")
        assert refused.value.holder is not None
        assert refused.value.holder.pid == os.getpid()
    assert take(tmp_path / "lock")


def test_a_lock_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(Locked, match=str(holder.pid)):
        take(tmp_path / "lock")
    holder.kill()
    holder.communicate()
    assert take(tmp_path / "lock")


def test_a_child_that_inherits_the_file_goes_on_holding_the_lock(tmp_path: Path) -> None:
    with locked(tmp_path / "lock") as descriptor:
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(descriptor,))
    with pytest.raises(Locked):
        take(tmp_path / "lock")
    child.communicate()
    assert take(tmp_path / "lock", wait_s=30.0)


def test_a_file_system_without_locks_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(file_lock.fcntl, "flock", unsupported)
    assert take(tmp_path / "lock")
    assert "has no locks" in caplog.text
