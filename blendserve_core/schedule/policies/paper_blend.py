"""The paper's dual scan (section 5.4): a cursor from each end, the memory split so that the blend has the root's density."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blendserve_core.plan.dual_scan import memory_split
from blendserve_core.plan.plan import Plan
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.policies.request_times import RequestTimes
from blendserve_core.schedule.policies.two_ends import LEFT, RIGHT, TwoEnds
from blendserve_core.schedule.policy import Lacks, Load, StepOutcome

OVERRUN = 2.0
"""A left request with this many times its estimated outputs counts as memory-intensive from then on."""


@dataclass(frozen=True, slots=True)
class RequestProfile:
    """What the planner expects of each request; arrays are [num_requests] of the table.

    num_prompt_tokens, est_output_tokens
    num_own_tokens  prompt tokens that it does not share with its neighbour in the tree: shared ones are held and computed once
    density         compute density of the schedulable unit that the request belongs to
    unit_kv_tokens  p + d/2 of that unit's mean request, the KV tokens it holds on average while it runs
    unit_intake     p/d of that unit, the prompt tokens that one of its decode slots takes in per step
    root_density    density of the whole shard
    """

    num_prompt_tokens: NDArray[np.int32]
    num_own_tokens: NDArray[np.int32]
    est_output_tokens: NDArray[np.float32]
    density: NDArray[np.float64]
    unit_kv_tokens: NDArray[np.float64]
    unit_intake: NDArray[np.float64]
    root_density: float

    @classmethod
    def of(cls, plan: Plan, requests: RequestTable, times: RequestTimes) -> RequestProfile:
        """From a plan's estimates: densities with the expected memory times, which go with E[d^2], as in the plan's order."""
        est_output_tokens = plan.estimates.mean_tokens
        memory_s = np.maximum(times.memory_s, 1e-12)
        unit_compute_s, unit_memory_s, num_own_tokens, num_output_tokens, size = _unit_sums(
            plan, [times.compute_s, memory_s, times.num_own_tokens, est_output_tokens, np.ones(len(memory_s))]
        )
        return cls(
            num_prompt_tokens=requests.num_prompt_tokens,
            num_own_tokens=times.num_own_tokens,
            est_output_tokens=est_output_tokens,
            density=unit_compute_s / unit_memory_s,
            unit_kv_tokens=(num_own_tokens + num_output_tokens / 2) / size,
            unit_intake=num_own_tokens / np.maximum(num_output_tokens, 1.0),
            root_density=float(times.compute_s.sum() / memory_s.sum()) if len(memory_s) else 1.0,
        )

    @property
    def est_kv_tokens(self) -> NDArray[np.float64]:
        """KV tokens a request holds on average while it runs: p + d/2."""
        return self.num_own_tokens + self.est_output_tokens / 2.0


def _unit_sums(plan: Plan, columns: list[NDArray[Any]]) -> NDArray[np.float64]:
    """[C, R] sums of C columns [R] over the schedulable unit that each request belongs to."""
    sums = np.ones((len(columns), len(columns[0])), dtype=np.float64)
    for shard in plan.shards:
        num_units = len(shard.unit_indptr) - 1
        unit_of = np.repeat(np.arange(num_units), np.diff(shard.unit_indptr))
        for row, column in zip(sums, columns, strict=True):
            row[shard.order] = np.bincount(unit_of, column[shard.order], num_units)[unit_of]
    return sums


class PaperBlend:
    """Keeps each side's running requests within its share of the memory; a request that ends is replaced from its own side.

    A side admits while it is below its share, so one prompt larger than a share does not hold it up. A running request counts
    with what it holds on average, or with what it holds by now if that is more: else outputs that run long would take the
    memory of both sides.
    """

    def __init__(self, order: NDArray[np.int64], profile: RequestProfile, num_kv_tokens: int) -> None:
        self._waiting = TwoEnds(order, len(profile.density))
        self._profile = profile
        self._est_kv_tokens = profile.est_kv_tokens
        self._num_shared_tokens = profile.num_prompt_tokens - profile.num_own_tokens
        self._num_kv_tokens = num_kv_tokens
        self._held = np.zeros(len(profile.density))
        self._used = [0.0, 0.0]

    @property
    def num_waiting(self) -> int:
        return self._waiting.num_waiting

    @property
    def lacks(self) -> Lacks:
        is_idle = self.num_waiting == 0
        return Lacks(is_idle, is_idle, is_idle)

    def add(self, order: NDArray[np.int64]) -> None:
        self._waiting.add(order)

    def prefill_budget(self, load: Load, max_prefill_tokens: int) -> int:
        """C = N·p/d tokens for each side, N its decode slots: then prompts arrive as fast as outputs end."""
        self._move_overruns(load)
        self._count_held(load)
        num_tokens = 0.0
        for side, memory in enumerate(self._split()):
            request = self._waiting.peek(side)
            if request is not None:
                num_slots = memory / max(float(self._profile.unit_kv_tokens[request]), 1.0)
                num_tokens += num_slots * float(self._profile.unit_intake[request])
        return int(np.clip(num_tokens, min(load.page_size, max_prefill_tokens), max_prefill_tokens))

    def next(self, load: Load) -> int | None:
        memory = self._split()
        sides = sorted((LEFT, RIGHT), key=lambda side: self._used[side] / max(memory[side], 1.0))
        for side in sides:
            request = self._waiting.peek(side)
            if request is not None and self._used[side] < memory[side]:
                return self._admit(request, side)
        if len(load.running):
            return None
        # An empty engine takes anything: a share too small for its next request must not stop the run.
        return next((self._admit(r, side) for side in sides if (r := self._waiting.peek(side)) is not None), None)

    def to_retract(self, load: Load) -> list[int]:
        return []

    def put_back(self, request: int, *, retracted: bool) -> None:
        self._release(request)
        self._waiting.put_back(request)

    def observe(self, outcome: StepOutcome) -> None:
        for request in outcome.finished.tolist():
            self._release(request)

    def _split(self) -> tuple[float, float]:
        """M_L and M_R for the requests under the cursors; one side alone gets all the memory."""
        left, right = self._waiting.peek(LEFT), self._waiting.peek(RIGHT)
        if left is None or right is None:
            return (0.0, float(self._num_kv_tokens)) if left is None else (float(self._num_kv_tokens), 0.0)
        density = self._profile.density
        return memory_split(float(density[left]), float(density[right]), self._profile.root_density, float(self._num_kv_tokens))

    def _admit(self, request: int, side: int) -> int:
        self._waiting.take(request, side)
        self._held[request] = float(self._est_kv_tokens[request])
        self._used[side] += float(self._held[request])
        return request

    def _release(self, request: int) -> None:
        self._used[self._waiting.side[request]] -= float(self._held[request])
        self._held[request] = 0.0

    def _count_held(self, load: Load) -> None:
        """Requests that hold more by now than they were expected to on average."""
        running = load.running
        self._held[running] = np.maximum(self._est_kv_tokens[running], load.kv_lens - self._num_shared_tokens[running])
        self._used = np.bincount(self._waiting.side[running], self._held[running], minlength=2).tolist()

    def _move_overruns(self, load: Load) -> None:
        """A request that runs far past its estimate moves from the left share to the right."""
        running = load.running
        is_over = (self._waiting.side[running] == LEFT) & (
            load.num_outputs > OVERRUN * np.maximum(self._profile.est_output_tokens[running], 1.0)
        )
        self._waiting.side[running[is_over]] = RIGHT
