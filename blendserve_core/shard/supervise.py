"""Starts a shard's engine as a process of its own, follows its heartbeat, and takes it along when the caller ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from schemas.manifest import EngineManifest, Progress
from schemas.shard import EngineSpec

POLL_S = 0.2
GRACE_S = 20.0
LOG_TAIL_BYTES = 4000

# Threads that spin while they wait for each other collapse when the machine is shared: steps took three times as long.
PATIENT_THREADS = {"OMP_WAIT_POLICY": "PASSIVE"}


class EngineError(RuntimeError):
    """An engine process ended without finishing its work. The message holds the end of its log."""


def run_engine(spec: EngineSpec, on_progress: Callable[[Progress], None] | None = None) -> EngineManifest:
    """Run one engine to its end and return what it did. ``on_progress`` is called whenever the heartbeat changes.

    Whatever ends this call early (an exception, a cancelled flow) ends the engine too, after it has flushed what is finished.
    Raises EngineError if the engine dies; rows it had finished are on disk.
    """
    folder = Path(spec.output_folder)
    spec.write(folder / "spec.json")
    (folder / "manifest.json").unlink(missing_ok=True)
    with (folder / "engine.log").open("ab") as log:
        # A session of its own keeps a Ctrl-C in the terminal from reaching the engine before we decide what it means.
        process = subprocess.Popen(
            [sys.executable, "-m", "blendserve_core.shard.worker", str(folder / "spec.json"), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**PATIENT_THREADS, **os.environ},
        )
    try:
        _follow(process, folder / "progress.json", on_progress)
    finally:
        _end(process)
    if process.returncode != 0 or not (folder / "manifest.json").exists():
        raise EngineError(_describe_death(spec, process.returncode, folder / "engine.log"))
    return EngineManifest.read(folder / "manifest.json")


def _follow(process: subprocess.Popen[bytes], path: Path, on_progress: Callable[[Progress], None] | None) -> None:
    last = None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=POLL_S)
            return
        progress = _read_progress(path)
        if progress is not None and progress != last and on_progress is not None:
            on_progress(progress)
        last = progress


def _read_progress(path: Path) -> Progress | None:
    try:
        return Progress.read(path)
    except (FileNotFoundError, ValidationError):
        return None


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
