"""A step as a list of operations on lanes, with events between them, before any of it runs.

A lane stands for a stream. The same list drives real streams, is checked for missing waits, and is run in random orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum


class Lane(Enum):
    """GEMM: everything compute-bound. ATTENTION: decode attention, which reads memory. REDUCE: sums over ranks."""

    GEMM = "gemm"
    ATTENTION = "attention"
    REDUCE = "reduce"


@dataclass(frozen=True, slots=True)
class Run:
    """One operation, and the named buffers that it reads and writes."""

    lane: Lane
    name: str
    call: Callable[[], None]
    reads: frozenset[str]
    writes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Record:
    """What the lane was given so far is done when ``event`` is."""

    lane: Lane
    event: str


@dataclass(frozen=True, slots=True)
class Wait:
    """What the lane is given from here on starts after ``event``."""

    lane: Lane
    event: str


Instruction = Run | Record | Wait
Program = list[Instruction]


class Recorder:
    """Collects a program. ``ordered`` is how two lanes meet: record on one, wait on the other."""

    def __init__(self) -> None:
        self.program: Program = []

    def run(self, lane: Lane, name: str, call: Callable[[], None], reads: Iterable[str], writes: Iterable[str]) -> None:
        self.program.append(Run(lane, name, call, frozenset(reads), frozenset(writes)))

    def ordered(self, before: Lane, after: Lane, event: str) -> None:
        """What ``before`` was given so far is done before ``after`` goes on."""
        self.record(before, event)
        self.wait(after, event)

    def record(self, lane: Lane, event: str) -> None:
        self.program.append(Record(lane, event))

    def wait(self, lane: Lane, event: str) -> None:
        self.program.append(Wait(lane, event))
