"""Ctrl-C and SIGTERM on the command line: engines stop after writing what is finished, and the command ends soon."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from threading import Event, Thread
from types import FrameType
from typing import TypeVar

import psutil

from blendserve_core.job.interrupt import stop_engines
from blendserve_core.job.job import Job

Result = TypeVar("Result")

ENGINE_MODULE = "blendserve_core.shard.worker"
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
STOPPED = "blendserve: stopped; the same command goes on from here"

ENGINES_END_WITHIN_S = 20.0
PREFECT_ENDS_WITHIN_S = 5.0


def until_ctrl_c(job: Job, run: Callable[[], Result]) -> Result:
    """What ``run`` returns or raises. On Ctrl-C or SIGTERM engines stop, and this process ends; on the second at once.

    A terminal, ``timeout`` and a batch system signal Prefect's embedded server too. It ends at once, and a flow that waits for
    it does not; so when the engines have ended, the flow is given a few seconds to note it and is then left.

    The flow gets a thread of its own. In the main thread Prefect would put its own handler of SIGTERM in the place of ours,
    which first tells the server, for minutes if that is gone.
    """
    is_stopping, is_over = Event(), Event()

    def stop(which: int, _: FrameType | None) -> None:
        status = 128 + which
        if is_stopping.is_set():
            _leave(status)
        is_stopping.set()
        Thread(target=_stop, args=(job, status, is_over), daemon=True).start()

    previous = {which: signal.signal(which, stop) for which in (signal.SIGINT, signal.SIGTERM)}
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="flow") as thread:
            running = thread.submit(copy_context().run, run)
            wait([running])
            is_over.set()
            if is_stopping.is_set():
                Event().wait()  # the thread that stops the engines ends the process
        return running.result()
    finally:
        for which, handler in previous.items():
            signal.signal(which, handler)


def _stop(job: Job, status: int, is_over: Event) -> None:
    """Stop the engines, and leave. What Prefect would say of it from now on is of no use to who stopped the job."""
    try:
        logging.disable(logging.CRITICAL)
        stop_engines(job)
        if _end_engines():
            is_over.wait(PREFECT_ENDS_WITHIN_S)
    finally:
        _leave(status)


def _end_engines() -> bool:
    """Tell each engine itself: its supervisor may be waiting for a server that is gone, and one that starts has no heartbeat.

    Returns whether there were any; without one, nothing in the flow takes note of being stopped.
    """
    deadline = time.monotonic() + ENGINES_END_WITHIN_S
    told: set[int] = set()
    while (engines := _engines()) and time.monotonic() < deadline:
        for engine in engines:
            if engine.pid not in told:
                told.add(engine.pid)
                with suppress(psutil.Error):
                    engine.terminate()
        time.sleep(0.1)
    return bool(told)


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
