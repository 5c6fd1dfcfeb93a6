"""Length distributions as the mean length in each of a few probability bins, from finished and unfinished observations."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

_COARSE = np.arange(32) / 32
_TAIL = 1 - 0.5 ** np.arange(6, 13)
BIN_EDGES = np.concatenate([_COARSE, _TAIL, [1.0]])
"""Cumulative probability at the bins' edges: 31 equal bins, then finer ones into the upper tail, where decode time lies."""

BIN_PROBABILITY = np.diff(BIN_EDGES)
NUM_BINS = len(BIN_PROBABILITY)

OUTLIVED = 2.0
"""A request that has outlived its whole group is put at this multiple of its age: half-way through its life, on average."""


def kaplan_meier_bins(
    group: NDArray[np.int64],
    num_tokens: NDArray[np.int32],
    is_finished: NDArray[np.bool_],
    weight: NDArray[np.float64],
    limit: int,
    num_groups: int,
) -> NDArray[np.float64]:
    """[num_groups, NUM_BINS] mean length in each bin, increasing; nan for groups without observations.

    Observations [K] may be unfinished ("at least this long"): the estimator is Kaplan and Meier's, weighted. What outlives all
    of them is taken to end at the rate seen last. No output is longer than ``limit``.
    """
    order = np.lexsort((~is_finished, num_tokens, group))
    indptr = np.searchsorted(group[order], np.arange(num_groups + 1))
    tokens = np.maximum(num_tokens[order], 1).astype(np.float64)
    return survival_bins(indptr, tokens, is_finished[order], weight[order].astype(np.float64), float(limit), BIN_EDGES)


@njit(cache=True)
def survival_bins(indptr, num_tokens, is_finished, weight, limit, edges):
    """The same from observations that are sorted: CSR by group, by ``num_tokens``, finished before unfinished."""
    bins = np.full((len(indptr) - 1, len(edges) - 1), np.nan)
    for group in range(len(indptr) - 1):
        first, last = indptr[group], indptr[group + 1]
        if first == last:
            continue
        bins[group] = 0.0
        at_risk, survival = weight[first:last].sum(), 1.0
        for i in range(first, last):
            if is_finished[i]:
                mass = survival * min(weight[i] / at_risk, 1.0)
                _spread(bins[group], edges, 1 - survival, 1 - survival + mass, num_tokens[i])
                survival -= mass
            at_risk = max(at_risk - weight[i], weight[i] * 1e-12)
        longest = num_tokens[last - 1]
        remaining = _mean_remaining(num_tokens[first:last], is_finished[first:last], weight[first:last])
        if remaining > 0.0:
            _spread_at_constant_rate(bins[group], edges, 1 - survival, longest, remaining, max(limit, longest))
        else:
            _spread_evenly_in_log(bins[group], edges, 1 - survival, longest, max(limit, longest))
        bins[group] /= np.diff(edges)
    return bins


@njit(cache=True)
def _spread(row, edges, start, stop, value):
    """Add ``value`` times the probability mass [start, stop) to the bins it falls into."""
    for b in range(max(np.searchsorted(edges, start) - 1, 0), len(row)):
        if edges[b] >= stop:
            break
        row[b] += value * max(min(stop, edges[b + 1]) - max(start, edges[b]), 0.0)


@njit(cache=True)
def _mean_remaining(num_tokens, is_finished, weight):
    """How long what is still there goes on if it ends at the rate seen in the longer half of ages; 0 if none has ended."""
    for start in (num_tokens[-1] / 2, 0.0):
        is_older = num_tokens > start
        num_ended = (weight * (is_older & is_finished)).sum()
        if num_ended > 0.0:
            return (weight * is_older * (num_tokens - start)).sum() / num_ended
    return 0.0


@njit(cache=True)
def _spread_at_constant_rate(row, edges, start, shortest, mean, limit):
    """Spread the probability mass [start, 1) from ``shortest`` on, exponentially with this mean, up to ``limit``."""
    for b in range(len(row)):
        low, high = max(start, edges[b]), edges[b + 1]
        if high > low:
            quantile = ((low + high) / 2 - start) / (1 - start)
            row[b] += (high - low) * min(shortest - mean * np.log(1 - quantile), limit)


@njit(cache=True)
def _spread_evenly_in_log(row, edges, start, shortest, longest):
    """Spread the probability mass [start, 1) from ``shortest`` to ``longest``, every factor in between as likely.

    Where nothing has ended, nothing but its limit is known of an output.
    """
    for b in range(len(row)):
        low, high = max(start, edges[b]), edges[b + 1]
        if high > low:
            quantile = ((low + high) / 2 - start) / (1 - start)
            row[b] += (high - low) * shortest * (longest / shortest) ** quantile


def capped_moments(bin_tokens: NDArray, cap: NDArray) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and second moment [K] of distributions ``bin_tokens`` [K, B] when no length exceeds ``cap`` [K]."""
    capped = np.minimum(bin_tokens, np.asarray(cap, np.float64)[:, None])
    return capped @ BIN_PROBABILITY, (capped * capped) @ BIN_PROBABILITY


@njit(cache=True)
def remaining_tokens(bin_tokens, group, age, max_tokens):
    """[K] expected tokens still to come of requests that reached ``age``; those past every bin are half-way through."""
    remaining = np.empty(len(group), np.float64)
    for i in range(len(group)):
        mass, total = 0.0, 0.0
        for b in range(bin_tokens.shape[1] - 1, -1, -1):
            if bin_tokens[group[i], b] <= age[i]:
                break
            mass += BIN_PROBABILITY[b]
            total += BIN_PROBABILITY[b] * (bin_tokens[group[i], b] - age[i])
        expected = total / mass if mass > 0 else (OUTLIVED - 1) * age[i]
        remaining[i] = min(max(expected, 1.0), max(max_tokens[i] - age[i], 0))
    return remaining
