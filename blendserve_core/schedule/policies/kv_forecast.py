"""How much KV the running requests will hold in the steps to come, given how long requests of their kind run."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from blendserve_core.plan.plan import LengthEstimates

HORIZON_GROWTH = 1.12


def horizon_steps(longest: int) -> NDArray[np.float64]:
    """Numbers of steps from now at which the forecast looks: every step at first, ever fewer later."""
    num_points = int(np.ceil(np.log(max(longest, 2)) / np.log(HORIZON_GROWTH))) + 1
    steps = np.round(HORIZON_GROWTH ** np.arange(num_points, dtype=np.float64))
    return np.unique(steps).astype(np.float64) - 1.0


class KvForecast:
    """Expected KV tokens, and their variance, at a grid of step numbers from now: what runs, plus what is being admitted.

    Requests admitted together grow together, so p + d/2 for each is too little; the forecast sees the peak. A request that has
    reached its age ends at one of its group's longer lengths, each as likely as the estimates say. ``num_own_tokens`` are a
    prompt's tokens without those that it shares with its neighbours: cached prefixes are held once.
    """

    def __init__(self, estimates: LengthEstimates, num_own_tokens: NDArray[np.int32], max_outputs: NDArray[np.int32]) -> None:
        self._estimates = estimates
        self._num_own_tokens = num_own_tokens
        self._max_outputs = max_outputs
        self._horizon = horizon_steps(int(max_outputs.max(initial=1)))
        self._expected = np.zeros(len(self._horizon))
        self._variance = np.zeros(len(self._horizon))

    def rebuild(self, running: NDArray[np.int64], num_outputs: NDArray[np.int32]) -> None:
        """Forget the forecast and make it anew from what runs; prompts that are not all computed yet count in full."""
        self._expected[:] = 0.0
        self._variance[:] = 0.0
        self._add(self._expected, self._variance, running, num_outputs)

    def add(self, request: int, num_outputs: int) -> None:
        """Count a request that is being admitted, with the outputs it already has."""
        self._add(self._expected, self._variance, *_one(request, num_outputs))

    def fits(self, request: int, num_outputs: int, limit_tokens: float, num_deviations: float) -> bool:
        """Whether the forecast with this request stays under the limit, ``num_deviations`` standard deviations included.

        Only the steps in which the request may still run count: what others do later is not its doing.
        """
        expected, variance = self._expected.copy(), self._variance.copy()
        self._add(expected, variance, *_one(request, num_outputs))
        is_running = expected > self._expected
        peak = (expected + num_deviations * np.sqrt(variance))[is_running].max(initial=0.0)
        return bool(peak <= limit_tokens)

    def _add(
        self,
        expected: NDArray[np.float64],
        variance: NDArray[np.float64],
        requests: NDArray[np.int64],
        num_outputs: NDArray[np.int32],
    ) -> None:
        estimates = self._estimates
        _add_requests(
            expected, variance, self._horizon, requests, num_outputs, self._num_own_tokens, self._max_outputs,
            estimates.group, estimates.bin_tokens, estimates.bin_probability,
        )  # fmt: skip


def _one(request: int, num_outputs: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    return np.array([request], dtype=np.int64), np.array([num_outputs], dtype=np.int32)


@numba.njit(cache=True)
def _add_requests(
    expected, variance, horizon, requests, num_outputs, num_own_tokens, max_outputs, group, bin_tokens, bin_probability
):
    num_bins = len(bin_probability)
    for i in range(len(requests)):
        request, age = requests[i], num_outputs[i]
        lengths, limit = bin_tokens[group[request]], max_outputs[request]
        first = 0
        while first < num_bins and min(lengths[first], limit) <= age:
            first += 1
        # One that has outlived its whole group is expected to run as long again.
        total = bin_probability[first:].sum() if first < num_bins else 1.0
        alive, held = total, num_own_tokens[request] + age
        bin_number = first
        for k in range(len(horizon)):
            reached = age + horizon[k]
            while bin_number < num_bins and min(lengths[bin_number], limit) <= reached:
                alive -= bin_probability[bin_number]
                bin_number += 1
            if bin_number == num_bins and (first < num_bins or reached >= min(2 * age + 1, limit)):
                break
            probability = alive / total
            tokens = held + horizon[k]
            expected[k] += probability * tokens
            variance[k] += probability * (1.0 - probability) * tokens * tokens
