"""Starts a shard's engine as a process of its own, follows its heartbeat, and takes it along when the caller ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from blendserve_core.data.durable import DiskFull
from blendserve_core.data.file_lock import write_holder
from blendserve_core.data.recover import recover
from blendserve_core.shard.folder import GRACE_S, SPEC_FILE, engine_folder
from schemas.manifest import EngineManifest, Progress
from schemas.shard import EngineSpec

WORKER_MODULE = "blendserve_core.shard.worker"
# An engine's exit status when it could not write. It stands here because the worker's module is costly to import.
DISK_IS_FULL = 74
POLL_S = 0.2
LOG_TAIL_BYTES = 4000

# Threads that spin while they wait for each other collapse when the machine is shared: steps took three times as long.
PATIENT_THREADS = {"OMP_WAIT_POLICY": "PASSIVE"}


class EngineError(RuntimeError):
    """A shard's work could not be finished. Rows that were finished are on disk; the same command goes on from there."""


class EngineDied(EngineError):
    """An engine process ended without finishing its work. The message holds the end of its log.

    ``status`` is its exit status, negative for a signal. ``is_killed`` means that somebody ended it by SIGKILL who was not the
    kernel in want of memory: that tells little about the rows that ran.
    """

    def __init__(self, message: str, status: int, *, is_killed: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.is_killed = is_killed


def run_engine(spec: EngineSpec, on_progress: Callable[[Progress], None] | None = None) -> EngineManifest:
    """Run one engine to its end and return what it did. ``on_progress`` is called whenever the heartbeat changes.

    Whatever ends this call early (an exception, a cancelled flow) ends the engine too, after it has flushed what is finished.
    Raises EngineDied if the engine dies, EngineError if one of an earlier run will not leave, and DiskFull.
    """
    folder = Path(spec.output_folder)
    with engine_folder(folder) as lock:
        recover(folder)
        spec.write(folder / SPEC_FILE)
        (folder / "manifest.json").unlink(missing_ok=True)
        num_oom_kills = count_oom_kills()
        process = _start(folder, lock)
        try:
            write_holder(lock, process.pid)
            _follow(process, folder / "progress.json", on_progress)
        finally:
            _end(process)
        recover(folder)
    if process.returncode == DISK_IS_FULL:
        raise DiskFull(folder)
    if process.returncode != 0 or not (folder / "manifest.json").exists():
        message = _describe_death(spec, process.returncode, folder / "engine.log")
        is_killed = process.returncode == -signal.SIGKILL and count_oom_kills() == num_oom_kills
        raise EngineDied(message, process.returncode, is_killed=is_killed)
    return EngineManifest.read(folder / "manifest.json")


def count_oom_kills(counters: Path = Path("/proc/vmstat")) -> int:
    """Processes that the kernel has killed for want of memory since the machine started; 0 where it does not say."""
    lines = counters.read_text().splitlines() if counters.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _start(folder: Path, lock: int) -> subprocess.Popen[bytes]:
    """The process inherits the folder's lock: should this one die, the folder stays locked until the engine is gone too."""
    with (folder / "engine.log").open("ab") as log:
        # A session of its own keeps a Ctrl-C in the terminal from reaching the engine before we decide what it means.
        return subprocess.Popen(
            [sys.executable, "-m", WORKER_MODULE, str(folder / SPEC_FILE), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**PATIENT_THREADS, **os.environ},
            pass_fds=(lock,),
        )


def _follow(process: subprocess.Popen[bytes], path: Path, on_progress: Callable[[Progress], None] | None) -> None:
    last = None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=POLL_S)
            return
        progress = Progress.read_if_whole(path)
        if progress is not None and progress != last and on_progress is not None:
            on_progress(progress)
        last = progress


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the engine and everything it started: first politely, then for good."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _describe_death(spec: EngineSpec, code: int, log: Path) -> str:
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
        tail = file.read().decode("utf-8", errors="replace")
    return f"the engine of shard {spec.rank} {how}; its log {log} ends with:\n{tail}"
