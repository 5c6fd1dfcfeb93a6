"""Engines whose flow was killed: the next run waits for them, or ends them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from blendserve_core.data.file_lock import write_holder
from blendserve_core.shard import folder as folder_module
from blendserve_core.shard.folder import LOCK_FILE, FolderBusy, engine_folder, settle
from schemas.manifest import LockHolder

# Stands for an engine: it writes what it finished once it is told to, and ends.
WRITE_AND_END = "import pathlib, sys; sys.stdin.read(); pathlib.Path(sys.argv[1]).with_name('last-words').touch()"


def leave_engine(folder: Path) -> subprocess.Popen[bytes]:
    """An engine without its flow: nobody but the engine itself has the folder's lock."""
    with engine_folder(folder) as lock:
        command = [sys.executable, "-c", WRITE_AND_END, str(folder / "spec.json")]
        engine = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(lock,), start_new_session=True)
        write_holder(lock, engine.pid)
    return engine


def test_the_last_words_of_an_engine_are_waited_for(tmp_path: Path) -> None:
    engine = leave_engine(tmp_path)
    assert engine.stdin is not None
    engine.stdin.close()
    settle(tmp_path)
    assert (tmp_path / "last-words").exists()
    engine.wait()


def test_an_engine_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "GRACE_S", 0.1)
    engine = leave_engine(tmp_path)
    settle(tmp_path)
    assert engine.wait() == -9
    assert not (tmp_path / "last-words").exists()


def test_an_engine_on_another_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "GRACE_S", 0.1)
    monkeypatch.setattr(folder_module, "KILLED_WITHIN_S", 0.1)
    engine = leave_engine(tmp_path)
    LockHolder(pid=engine.pid, host="elsewhere", since="2026-01-01").write(tmp_path / "copy")
    (tmp_path / LOCK_FILE).write_bytes((tmp_path / "copy").read_bytes())
    with pytest.raises(FolderBusy, match=f"process {engine.pid} on elsewhere"):
        settle(tmp_path)
    engine.communicate()
