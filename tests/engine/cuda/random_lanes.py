"""Lanes that run each program in a random order of those that a device's streams may take."""

from __future__ import annotations

import random

from blendserve_core.engine.cuda.check_program import find_races, random_legal_order
from blendserve_core.engine.cuda.lanes import LaneSeconds
from blendserve_core.engine.cuda.program import Lane, Program


class RandomLanes:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.programs: list[Program] = []

    def issue(self, program: Program, is_timed: bool) -> LaneSeconds | None:
        assert find_races(program) == []
        self.programs.append(program)
        for run in random_legal_order(program, self._rng):
            run.call()
        return (lambda: dict.fromkeys(Lane, 0.0)) if is_timed else None
