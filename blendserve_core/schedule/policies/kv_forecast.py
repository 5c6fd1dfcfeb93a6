"""How much KV the running requests will hold in the steps to come, given how long requests of their kind run."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from blendserve_core.plan.plan import LengthEstimates
from blendserve_core.schedule.policies.lengths_seen import LengthsSeen

HORIZON_GROWTH = 1.12


def horizon_steps(longest: int) -> NDArray[np.float64]:
    """Numbers of steps from now at which the forecast looks: every step at first, ever fewer later."""
    num_points = int(np.ceil(np.log(max(longest, 2)) / np.log(HORIZON_GROWTH))) + 1
    steps = np.round(HORIZON_GROWTH ** np.arange(num_points, dtype=np.float64))
    return np.unique(steps).astype(np.float64) - 1.0


class KvForecast:
    """Expected KV tokens at a grid of step numbers from now: of what runs, plus what is being admitted.

    Requests admitted together grow together, so p + d/2 for each is too little; the forecast sees the peak. A request that has
    reached its age ends at one of its group's longer lengths, each as likely as ``lengths`` say. ``num_own_tokens`` are a
    prompt's tokens without those that it shares with its neighbours: cached prefixes are held once.
    """

    def __init__(
        self,
        estimates: LengthEstimates,
        lengths: LengthsSeen,
        num_own_tokens: NDArray[np.int32],
        max_outputs: NDArray[np.int32],
    ) -> None:
        self._lengths = lengths
        self._group = estimates.group
        self._bin_probability = estimates.bin_probability.astype(np.float64)
        self._num_own_tokens = num_own_tokens
        self._max_outputs = max_outputs
        self._horizon = horizon_steps(int(max_outputs.max(initial=1)))
        self._expected = np.zeros(len(self._horizon))

    def rebuild(self, running: NDArray[np.int64], num_outputs: NDArray[np.int32]) -> None:
        """Forget the forecast and make it anew from what runs; prompts that are not all computed yet count in full."""
        self._expected[:] = 0.0
        _add_all(
            self._expected, self._horizon, running, num_outputs, self._num_own_tokens, self._max_outputs,
            self._group, self._lengths.bin_tokens, self._bin_probability,
        )  # fmt: skip

    def add(self, request: int, num_outputs: int) -> None:
        """Count a request that is being admitted, with the outputs it already has."""
        expected = self._expected_of(request, num_outputs)
        self._expected[: len(expected)] += expected

    def fits(self, request: int, num_outputs: int, limit_tokens: float) -> bool:
        """Whether the forecast with this request stays under the limit.

        Only the steps in which the request may still run count: what others do later is not its doing.
        """
        expected = self._expected_of(request, num_outputs)
        return bool((self._expected[: len(expected)] + expected).max(initial=0.0) <= limit_tokens)

    def is_over_before(self, request: int) -> bool:
        """Whether all that counts so far will have ended when the last of ``request``'s kind would, if it began now."""
        return int(np.count_nonzero(self._expected)) < len(self._expected_of(request, 0))

    def _expected_of(self, request: int, num_outputs: int) -> NDArray[np.float64]:
        return _expected_kv(
            self._horizon,
            num_outputs,
            int(self._num_own_tokens[request]) + num_outputs,
            self._lengths.bin_tokens[self._group[request]],
            self._bin_probability,
            int(self._max_outputs[request]),
        )


@numba.njit(cache=True)
def _add_all(expected, horizon, requests, num_outputs, num_own_tokens, max_outputs, group, bin_tokens, bin_probability):
    for i in range(len(requests)):
        request, age = requests[i], num_outputs[i]
        held, lengths = num_own_tokens[request] + age, bin_tokens[group[request]]
        own = _expected_kv(horizon, age, held, lengths, bin_probability, max_outputs[request])
        expected[: len(own)] += own


@numba.njit(cache=True)
def _expected_kv(horizon, age, held, lengths, bin_probability, limit):
    """Expected KV tokens of one request that has ``age`` outputs and holds ``held`` tokens, at the steps it may live to see."""
    num_bins = len(bin_probability)
    first = 0
    while first < num_bins and min(lengths[first], limit) <= age:
        first += 1
    # One that has outlived its whole group is expected to run as long again.
    total = bin_probability[first:].sum() if first < num_bins else 1.0
    expected = np.empty(len(horizon))
    alive, bin_number = total, first
    for k in range(len(horizon)):
        reached = age + horizon[k]
        while bin_number < num_bins and min(lengths[bin_number], limit) <= reached:
            alive -= bin_probability[bin_number]
            bin_number += 1
        if bin_number == num_bins and (first < num_bins or reached >= min(2 * age + 1, limit)):
            return expected[:k]
        expected[k] = alive / total * (held + horizon[k])
    return expected
