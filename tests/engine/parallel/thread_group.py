"""A group whose ranks are threads of the test, so that no process has to start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
WAIT_S = 60


class Meeting:
    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.brought: list[Tensor] = [torch.empty(0)] * size

    def exchange(self, rank: int, x: Tensor) -> list[Tensor]:
        self.brought[rank] = x.clone()
        self.barrier.wait(WAIT_S)
        taken = list(self.brought)
        self.barrier.wait(WAIT_S)
        return taken


class ThreadGroup:
    def __init__(self, meeting: Meeting, rank: int, size: int) -> None:
        self.meeting, self.rank, self.size = meeting, rank, size

    def all_reduce(self, x: Tensor) -> Tensor:
        return x.copy_(torch.stack(self.meeting.exchange(self.rank, x)).sum(0))

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self.meeting.exchange(self.rank, x), dim=1)

    def broadcast(self, x: Tensor) -> Tensor:
        return x.copy_(self.meeting.exchange(self.rank, x)[0])

    def minimum(self, value: int) -> int:
        return int(torch.stack(self.meeting.exchange(self.rank, torch.tensor(value))).min())

    def leave(self) -> None:
        pass


def on_every_rank(size: int, call: Callable[[ThreadGroup], T]) -> list[T]:
    """Results of ``call`` on each of ``size`` ranks at once."""
    meeting = Meeting(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: call(ThreadGroup(meeting, rank, size)), range(size)))
