"""The default policy: the dual scan, steered by what is seen while it runs instead of by estimates alone.

Memory-intensive requests enter while a forecast of the KV to come has room for them. As long as any is left, compute-intensive
ones fill each step with as much compute as its KV reads hide; after that they take all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blendserve_core.schedule.policies.balance import Balance
from blendserve_core.schedule.policies.kv_forecast import KvForecast
from blendserve_core.schedule.policies.left_demand import LeftDemand
from blendserve_core.schedule.policies.lengths_seen import LengthsSeen
from blendserve_core.schedule.policies.request_times import RequestTimes
from blendserve_core.schedule.policies.side import Side
from blendserve_core.schedule.policy import Lacks, Load, StepOutcome


@dataclass(frozen=True, slots=True)
class BlendSettings:
    """What was tuned in simulation.

    forecast_every   steps between two looks ahead, at least ``forecast_pause`` where a memory-intensive request has ended
    fill             share of the pool that the forecast may reach
    reserve          KV kept free of forecasts, over what the compute-intensive side holds on average
    hard_reserve     the same, but memory-intensive requests that have outgrown their forecast are put off to keep it
    max_spare        share of the pool that may be reserved beyond what the compute-intensive side holds on average
    max_reserve      share of the pool that may be reserved in all
    """

    forecast_every: int = 16
    forecast_pause: int = 4
    fill: float = 0.98
    reserve: float = 5.0
    hard_reserve: float = 2.5
    max_spare: float = 0.08
    max_reserve: float = 0.5
    reserve_window: int = 512
    max_backfill: int = 16


@dataclass(frozen=True, slots=True)
class Forecasts:
    """Of the KV that memory-intensive requests will hold, and of all KV."""

    right: KvForecast
    both: KvForecast


class Blend:
    """Dual scan with KV look-ahead, backfill, balanced steps and lengths learned on the way.

    ``is_memory_intensive`` [R] says to which side a request belongs. ``num_outputs`` [R] are those that requests begin with.
    """

    def __init__(
        self,
        times: RequestTimes,
        is_memory_intensive: NDArray[np.bool_],
        num_outputs: NDArray[np.int32],
        lengths: LengthsSeen,
        forecasts: Forecasts,
        balance: Balance,
        num_kv_tokens: int,
        settings: BlendSettings | None = None,
    ) -> None:
        num_requests = len(is_memory_intensive)
        self._left, self._right = Side(num_requests), Side(num_requests)
        self._is_right = is_memory_intensive
        self._num_outputs = num_outputs.copy()
        self._num_own_tokens = times.num_own_tokens
        self._lengths = lengths
        self._forecasts = forecasts
        self._balance = balance
        self._demand = LeftDemand(times)
        self._num_kv_tokens = num_kv_tokens
        self._settings = settings or BlendSettings()
        self._num_right_running = 0
        self._most_right_running = 0
        self._last_right: int | None = None
        self._right_is_full = False
        self._steps_since_forecast = self._settings.forecast_every
        self._is_forecast_stale = False
        self._left_kv_tokens = 0.0
        self._left_is_full = False
        self._left_budget = 0

    @property
    def num_waiting(self) -> int:
        return self._left.num_waiting + self._right.num_waiting

    @property
    def lacks(self) -> Lacks:
        """Memory-intensive ones only where another like the last one would fit, so that none waits for long."""
        is_early = self._right.num_waiting == 0 and self._has_room_for_another()
        return Lacks(is_early, is_early and self._is_through_with_the_right(), self._left.num_waiting == 0)

    def add(self, order: NDArray[np.int64]) -> None:
        """``order`` runs from compute-intensive to memory-intensive."""
        is_right = self._is_right[order]
        self._left.add(order[~is_right])
        self._right.add(self._furthest_first(order[is_right][::-1]))
        self._demand.follow(self._left.waiting)
        self._steps_since_forecast = self._settings.forecast_every

    def prefill_budget(self, load: Load, max_prefill_tokens: int) -> int:
        self._look_ahead(load)
        self._left_budget = max_prefill_tokens
        is_memory_work_left = self._num_right_running + self._right.num_waiting > 0
        if self._balance.is_useful and is_memory_work_left and load.num_decode_tokens > 0:
            balanced = self._balance.prefill_tokens(load.num_decode_tokens, load.num_kv_tokens_read)
            self._left_budget = min(balanced, max_prefill_tokens)
        if not self._right_is_full:
            self._right_is_full = self._find_on_the_right(is_alone=len(load.running) == 0) is None
        return self._left_budget if self._right_is_full else max_prefill_tokens

    def to_retract(self, load: Load) -> list[int]:
        """The newest memory-intensive requests, where those that run have outgrown what the forecast said."""
        reserve = self._reserve_tokens(self._settings.hard_reserve)
        if load.num_free_pages * load.page_size >= reserve or self._num_right_running <= 1:
            return []
        rows = np.flatnonzero(self._is_right[load.running])
        held = np.cumsum(self._num_own_tokens[load.running[rows]] + load.num_outputs[rows])
        too_many = min(int(np.count_nonzero(held > self._num_kv_tokens - reserve)), len(rows) - 1)
        return load.running[rows[len(rows) - too_many :]][::-1].tolist()

    def next(self, load: Load) -> int | None:
        """A memory-intensive request if the forecast has room for one, else a compute-intensive one."""
        is_alone = len(load.running) == 0
        if not self._right_is_full or is_alone:
            request = self._find_on_the_right(is_alone=is_alone)
            if request is not None:
                return self._admit_right(request)
            self._right_is_full = True
        request = self._left.peek()
        if request is None or not (is_alone or self._has_room_on_the_left(request, load)):
            return None
        self._forecasts.both.add(request, int(self._num_outputs[request]))
        return self._left.take(request)

    def put_back(self, request: int, *, retracted: bool) -> None:
        if not self._is_right[request]:
            self._left.put_back(request)
            return
        self._right.put_back(request)
        self._num_right_running -= 1
        self._right_is_full = True
        self._is_forecast_stale |= retracted

    def observe(self, outcome: StepOutcome) -> None:
        self._balance.observe(outcome)
        ended = outcome.finished
        if len(ended) == 0:
            return
        self._num_outputs[ended] = outcome.finished_num_outputs
        is_right = self._is_right[ended]
        if is_right.any():
            self._lengths.observe(ended[is_right], outcome.finished_num_outputs[is_right])
            self._num_right_running -= int(is_right.sum())
            self._is_forecast_stale = True

    def _furthest_first(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those that have begun come first: what has lived long is likely to live long, and should not end last."""
        return order[np.argsort(-self._num_outputs[order], kind="stable")]

    def _look_ahead(self, load: Load) -> None:
        """Once in a while: renew the lengths, the forecast, and what the compute-intensive side needs of the memory."""
        self._steps_since_forecast += 1
        pause = self._settings.forecast_pause if self._is_forecast_stale else self._settings.forecast_every
        if self._steps_since_forecast < pause:
            return
        self._steps_since_forecast, self._is_forecast_stale = 0, False
        self._right_is_full = self._left_is_full = False
        self._num_outputs[load.running] = load.num_outputs
        running = load.running[self._is_right[load.running]]
        waiting = np.array(self._right.returned, dtype=np.int64)
        begun = np.concatenate([running, waiting])
        self._lengths.refresh(begun, self._num_outputs[begun])
        self._forecasts.right.rebuild(running, self._num_outputs[running])
        self._forecasts.both.rebuild(load.running, load.num_outputs)
        window = max(self._settings.reserve_window, self._left.num_waiting // 2)
        num_prefill_tokens = self._balance.prefill_tokens(load.num_decode_tokens, self._num_kv_tokens)
        self._left_kv_tokens = self._demand.kv_tokens(num_prefill_tokens, self._left.position, window)

    def _reserve_tokens(self, factor: float) -> float:
        spare = min((factor - 1.0) * self._left_kv_tokens, self._settings.max_spare * self._num_kv_tokens)
        return min(self._left_kv_tokens + spare, self._settings.max_reserve * self._num_kv_tokens)

    @property
    def _right_limit_tokens(self) -> float:
        return self._settings.fill * self._num_kv_tokens - self._reserve_tokens(self._settings.reserve)

    def _has_room_for_another(self) -> bool:
        last = self._last_right
        return last is None or self._num_right_running == 0 or self._fits(last, self._right_limit_tokens)

    def _is_through_with_the_right(self) -> bool:
        """Whether more memory work would not hold up a request that runs on after it; most of its own has ended anyway."""
        last = self._last_right
        is_half_through = 2 * self._num_right_running <= self._most_right_running
        return is_half_through and (last is None or self._forecasts.right.is_over_before(last))

    def _find_on_the_right(self, *, is_alone: bool) -> int | None:
        """The next memory-intensive request that fits; when the first does not, shorter ones behind it are tried.

        An empty engine takes the first one, however long it may get.
        """
        limit = self._right_limit_tokens
        request = self._right.peek()
        if request is None or is_alone or self._fits(request, limit):
            return request
        for k in range(self._settings.max_backfill):
            candidate = self._right.ahead(1 << k)
            if candidate is not None and self._fits(candidate, limit):
                return candidate
        return None

    def _fits(self, request: int, limit_tokens: float) -> bool:
        return self._forecasts.right.fits(request, int(self._num_outputs[request]), limit_tokens)

    def _admit_right(self, request: int) -> int:
        num_outputs = int(self._num_outputs[request])
        self._forecasts.right.add(request, num_outputs)
        self._forecasts.both.add(request, num_outputs)
        self._num_right_running += 1
        self._most_right_running = max(self._most_right_running, self._num_right_running)
        self._last_right = request
        return self._right.take(request)

    def _has_room_on_the_left(self, request: int, load: Load) -> bool:
        """Whether the step has room for more prompt tokens, and the pool for the KV to come of this request."""
        if load.num_prefill_tokens >= self._left_budget or self._left_is_full:
            return False
        limit = self._settings.fill * self._num_kv_tokens
        self._left_is_full = not self._forecasts.both.fits(request, int(self._num_outputs[request]), limit)
        return not self._left_is_full
