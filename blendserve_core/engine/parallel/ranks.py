"""The processes of ranks 1, 2, ... of a tensor-parallel group, started and watched by the first rank's process."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait

from blendserve_core.schedule.step import StepPlan

PR_SET_PDEATHSIG = 1
LEAVE_S = 5.0
# How long a lost rank may go unnoticed: the first rank's own call may be one that never returns without it.
UNNOTICED_S = 30.0

RankMain = Callable[[int, Iterator[StepPlan]], None]
"""What a rank does with its number and the steps that the first rank sends. It must be picklable."""


class RankLostError(RuntimeError):
    """A rank died, and with it what it held of every sequence: the group cannot go on."""


class RankProcesses:
    """Ranks 1 to ``size`` - 1, each in a process of its own that ends with this one. Errors name them as of ``group_name``."""

    def __init__(self, size: int, main: RankMain, group_name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._group_name = group_name
        self._steps: list[Connection] = []
        self._processes = []
        for rank in range(1, size):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_run_rank, args=(main, rank, receiver, os.getpid()), name=f"rank {rank}", daemon=True
            )
            process.start()
            receiver.close()
            self._steps.append(sender)
            self._processes.append(process)
        self._is_noticed = threading.Event()
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    @property
    def pids(self) -> list[int]:
        return [process.pid or 0 for process in self._processes]

    def send(self, step: StepPlan) -> None:
        """Have every rank run the step. Raises RankLostError where one has died."""
        self.check()
        try:
            for sender in self._steps:
                sender.send(step)
        except OSError:
            self.check(LEAVE_S)
            raise

    def check(self, wait_s: float = 0.0) -> None:
        """Raises RankLostError where a rank has died, or does within ``wait_s``."""
        ended = wait([process.sentinel for process in self._processes], wait_s)
        for rank, process in enumerate(self._processes, start=1):
            if process.sentinel in ended:
                self._is_noticed.set()
                process.join()  # its pipes close a moment before it can be asked for its status
                raise RankLostError(self._lost(rank, _how(process.exitcode or 0)))

    def close(self) -> None:
        """Let the ranks leave; end those that do not, because they wait for one that is lost."""
        self._is_noticed.set()
        for sender in self._steps:
            sender.close()
        for process in self._processes:
            process.join(LEAVE_S)
            if process.is_alive():
                process.kill()
                process.join()

    def _watch(self) -> None:
        """End this process where a rank is lost and nobody notices: a device that waits for its sum may block the host too."""
        sentinels = {process.sentinel: rank for rank, process in enumerate(self._processes, start=1)}
        ended = wait(list(sentinels))
        if not self._is_noticed.wait(UNNOTICED_S):
            print(self._lost(sentinels[ended[0]], "unnoticed"), file=sys.stderr, flush=True)  # type: ignore[index]
            os._exit(1)

    def _lost(self, rank: int, how: str) -> str:
        return f"rank {rank} of {self._group_name} has died ({how}), and the group with it"


def _how(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _run_rank(main: RankMain, rank: int, steps: Connection, parent_pid: int) -> None:
    # An interrupt of the terminal goes to every process; the first rank decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:
            return
    main(rank, _received(steps))


def _received(steps: Connection) -> Iterator[StepPlan]:
    while True:
        try:
            yield steps.recv()
        except EOFError:
            return
