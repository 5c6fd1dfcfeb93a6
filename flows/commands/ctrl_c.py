"""Ctrl-C and SIGTERM on the command line: engines stop after writing what is finished, and the command ends soon."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import psutil

from blendserve_core.job.interrupt import stop_engines
from blendserve_core.job.job import Job

ENGINE_MODULE = "blendserve_core.shard.worker"
INTERRUPTED = 130
TERMINATED = 143
STOPPED = "blendserve: stopped; the same command goes on from here"

ENGINES_END_WITHIN_S = 20.0
PREFECT_ENDS_WITHIN_S = 5.0


@contextmanager
def ctrl_c_stops(job: Job) -> Iterator[None]:
    """Within this block Ctrl-C tells the job's engines to stop, which ends the flow.

    A terminal sends Ctrl-C to Prefect's embedded server too. It ends at once, and a flow that waits for it does not; so
    when the engines have ended, the flow is given a few seconds to note it and is then left.

    SIGTERM comes to the flow alone, which ends its engines and then this process, by the handler set here: Prefect's own
    end leaves its embedded server behind.
    """

    def stop(*_: object) -> None:
        stop_engines(job)
        Thread(target=_leave_after_engines, daemon=True).start()

    previous = signal.signal(signal.SIGINT, stop), signal.signal(signal.SIGTERM, _leave_terminated)
    try:
        yield
    finally:
        for which, handler in zip((signal.SIGINT, signal.SIGTERM), previous, strict=True):
            signal.signal(which, handler)


def _leave_after_engines() -> None:
    deadline = time.monotonic() + ENGINES_END_WITHIN_S
    while _engines() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(PREFECT_ENDS_WITHIN_S)
    _leave(INTERRUPTED)


def _leave_terminated(*_: object) -> None:
    _leave(TERMINATED)


def _leave(status: int) -> None:
    """End the processes that this one started, then this one, without waiting for what Prefect would still do."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.terminate()
    print(STOPPED, file=sys.stderr, flush=True)
    os._exit(status)


def _engines() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if _is_engine(child)]


def _is_engine(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and ENGINE_MODULE in process.cmdline()
    except psutil.Error:
        return False
