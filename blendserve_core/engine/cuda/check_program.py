"""Finds operations that may meet in memory: vector clocks over a program (Lamport, 1978; Fidge, 1988).

Two operations conflict where one writes a buffer that the other reads or writes. Each lane keeps the latest operation of every
lane that is known to be done; a conflict with an operation that is not known to be done is a race.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from blendserve_core.engine.cuda.program import Lane, Program, Record, Run, Wait

Clock = dict[Lane, int]


@dataclass(frozen=True, slots=True)
class Access:
    """An operation's use of a buffer: its lane, its place there, its name."""

    lane: Lane
    time: int
    name: str


def find_races(program: Program) -> list[str]:
    """One line for each pair of operations that no wait keeps apart; empty for a sound program.

    Raises ValueError for a wait on an event that was not recorded before: on a device it would not wait at all.
    """
    return list(_races(program))


def _races(program: Program) -> Iterator[str]:
    clocks: dict[Lane, Clock] = {lane: dict.fromkeys(Lane, 0) for lane in Lane}
    events: dict[str, Clock] = {}
    writers: dict[str, Access] = {}
    readers: dict[str, dict[Lane, Access]] = {}
    for instruction in program:
        clock = clocks[instruction.lane]
        if isinstance(instruction, Record):
            events[instruction.event] = dict(clock)
        elif isinstance(instruction, Wait):
            _join(clock, events, instruction)
        else:
            clock[instruction.lane] += 1
            yield from _conflicts(instruction, clock, writers, readers)
            _note(instruction, clock[instruction.lane], writers, readers)


def _join(clock: Clock, events: dict[str, Clock], wait: Wait) -> None:
    if wait.event not in events:
        raise ValueError(f"lane {wait.lane.value} waits for {wait.event}, which nobody has recorded")
    for lane, time in events[wait.event].items():
        clock[lane] = max(clock[lane], time)


def _conflicts(run: Run, clock: Clock, writers: dict[str, Access], readers: dict[str, dict[Lane, Access]]) -> Iterator[str]:
    for buffer in sorted(run.reads | run.writes):
        earlier = [writers[buffer]] if buffer in writers else []
        if buffer in run.writes:
            earlier += readers.get(buffer, {}).values()
        for access in earlier:
            if access.time > clock[access.lane]:
                early, late = (f"{use.name} on {use.lane.value}" for use in (access, run))
                yield f"{late} may run before {early} is done with {buffer}"


def _note(run: Run, time: int, writers: dict[str, Access], readers: dict[str, dict[Lane, Access]]) -> None:
    access = Access(run.lane, time, run.name)
    for buffer in run.writes:
        # Whoever comes after this write, in a program without races, comes after all earlier reads too.
        writers[buffer] = access
        readers[buffer] = {}
    for buffer in run.reads - run.writes:
        readers.setdefault(buffer, {})[run.lane] = access


def random_legal_order(program: Program, rng: random.Random) -> Iterator[Run]:
    """The operations in an order that the streams of a device may take: each lane in turn, waits kept."""
    queues = {lane: [instruction for instruction in program if instruction.lane is lane] for lane in Lane}
    recorded: set[str] = set()

    def is_ready(lane: Lane) -> bool:
        queue = queues[lane]
        return bool(queue) and not (isinstance(queue[0], Wait) and queue[0].event not in recorded)

    while ready := [lane for lane in Lane if is_ready(lane)]:
        instruction = queues[rng.choice(ready)].pop(0)
        if isinstance(instruction, Record):
            recorded.add(instruction.event)
        elif isinstance(instruction, Run):
            yield instruction
    assert not any(queues.values()), "some lane waits for ever"
