"""The default policy: the dual scan, steered by what is seen while it runs instead of by estimates alone.

Memory-intensive requests enter while a forecast of the KV to come has room for them, compute-intensive ones fill the rest of
each step's prompt tokens, and how many those are follows the ratio of what remains of both resources.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blendserve_core.schedule.policies.kv_forecast import KvForecast
from blendserve_core.schedule.policies.left_demand import LeftDemand
from blendserve_core.schedule.policies.ratio_control import RatioControl
from blendserve_core.schedule.policies.request_times import RequestTimes
from blendserve_core.schedule.policies.two_ends import LEFT, RIGHT, TwoEnds
from blendserve_core.schedule.policy import Load, StepOutcome


@dataclass(frozen=True, slots=True)
class BlendSettings:
    """What was tuned in simulation. ``forecast_every`` in steps, ``fill`` a share of the pool, deviations of the forecast."""

    forecast_every: int = 16
    fill: float = 0.98
    num_deviations: float = 0.5
    max_backfill: int = 16
    max_reserve: float = 0.5
    reserve_window: int = 512


class Blend:
    """Dual scan with KV look-ahead, backfill, ratio control and a retraction queue per side."""

    def __init__(
        self,
        times: RequestTimes,
        forecast: KvForecast,
        control: RatioControl,
        num_kv_tokens: int,
        settings: BlendSettings | None = None,
    ) -> None:
        num_requests = len(times.compute_s)
        self._times = times
        self._waiting = TwoEnds(np.empty(0, dtype=np.int64), num_requests)
        self._forecast = forecast
        self._control = control
        self._demand = LeftDemand(times)
        self._num_kv_tokens = num_kv_tokens
        self._settings = settings or BlendSettings()
        self._num_outputs = np.zeros(num_requests, dtype=np.int32)
        self._steps_to_forecast = 0
        self._right_is_full = False
        self._left_reserve = 0.0
        self._left_budget = 0

    @property
    def num_waiting(self) -> int:
        return self._waiting.num_waiting

    def add(self, order: NDArray[np.int64]) -> None:
        self._waiting.add(order)
        self._demand.follow(self._waiting.order)
        self._control.add(float(self._times.compute_s[order].sum()), float(self._times.memory_s[order].sum()))
        self._steps_to_forecast = 0

    def prefill_budget(self, load: Load, max_prefill_tokens: int) -> int:
        self._look(load)
        self._left_budget = self._control.prefill_tokens(load, max_prefill_tokens)
        return self._left_budget if self._right_is_full else max_prefill_tokens

    def next(self, load: Load) -> int | None:
        """A memory-intensive request if the forecast has room for one, else a compute-intensive one."""
        if len(load.running) == 0:
            return self._admit_any()
        if not self._right_is_full:
            request = self._find_on_the_right()
            if request is not None:
                return self._admit(request, RIGHT)
            self._right_is_full = True
        request = self._waiting.peek(LEFT)
        if request is None or load.num_prefill_tokens >= self._left_budget:
            return None
        if not self._fits(request, self._settings.fill * self._num_kv_tokens):
            return None
        return self._admit(request, LEFT)

    def put_back(self, request: int, *, retracted: bool) -> None:
        self._waiting.put_back(request)
        if retracted:
            # The forecast was too low; nothing memory-intensive enters until it has been made anew.
            self._steps_to_forecast = 0
            self._right_is_full = True

    def observe(self, outcome: StepOutcome) -> None:
        self._control.observe(outcome)
        self._num_outputs[outcome.finished] = outcome.finished_num_outputs
        if len(outcome.finished) and (self._waiting.side[outcome.finished] == RIGHT).any():
            self._steps_to_forecast = 0

    def _look(self, load: Load) -> None:
        """Once in a while: renew the forecast, and what the compute side needs of the memory."""
        self._num_outputs[load.running] = load.num_outputs
        if self._steps_to_forecast > 0:
            self._steps_to_forecast -= 1
            return
        self._steps_to_forecast = self._settings.forecast_every
        self._right_is_full = False
        self._forecast.rebuild(load.running, load.num_outputs)
        # What enters now fills the memory thousands of steps from now, so the compute side's needs at that time count.
        num_prefill_tokens = self._control.prefill_tokens_at(self._num_kv_tokens, load)
        window = max(self._settings.reserve_window, self.num_waiting // 2)
        num_tokens = self._demand.kv_tokens(num_prefill_tokens, self._waiting.left_position, window)
        self._left_reserve = min(num_tokens, self._settings.max_reserve * self._num_kv_tokens)

    def _find_on_the_right(self) -> int | None:
        """The next memory-intensive request that fits; when the first does not, shorter ones behind it are tried."""
        limit = self._settings.fill * self._num_kv_tokens - self._left_reserve
        request = self._waiting.peek(RIGHT)
        if request is None or self._fits(request, limit):
            return request
        for k in range(self._settings.max_backfill):
            candidate = self._waiting.ahead(RIGHT, 1 << k)
            if candidate is not None and self._fits(candidate, limit):
                return candidate
        return None

    def _fits(self, request: int, limit_tokens: float) -> bool:
        return self._forecast.fits(request, int(self._num_outputs[request]), limit_tokens, self._settings.num_deviations)

    def _admit(self, request: int, side: int) -> int:
        self._forecast.add(request, int(self._num_outputs[request]))
        return self._waiting.take(request, side)

    def _admit_any(self) -> int | None:
        """An empty engine takes the next request of whatever side has one, however long it may get."""
        for side in (RIGHT, LEFT):
            request = self._waiting.peek(side)
            if request is not None:
                return self._admit(request, side)
        return None
