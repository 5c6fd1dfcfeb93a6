"""Output-length estimates from what has been generated so far (paper section 5.2), as distributions rather than means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from blendserve_core.plan.groups import Groups, column_groups, tree_groups
from blendserve_core.plan.plan import LengthEstimates
from blendserve_core.plan.shrink import shrink
from blendserve_core.plan.survival import (
    BIN_EDGES,
    BIN_PROBABILITY,
    NUM_BINS,
    capped_moments,
    kaplan_meier_bins,
    remaining_tokens,
)
from blendserve_core.plan.tree import PrefixTree
from blendserve_core.requests import RequestTable

PRIOR_SHARE_OF_MAX = 0.5
"""Without a single observation an output is taken to lie anywhere up to its ``max_tokens``: half of it on average."""


@dataclass(frozen=True, slots=True)
class Observations:
    """Outputs seen so far. K = observations; a request that is still running, or was stopped, counts as unfinished.

    request     [K] int64 request indices
    num_tokens  [K] int32 output tokens, or how many there were when last seen
    is_finished [K] whether the request came to its end; running into ``max_tokens`` need not be told apart
    """

    request: NDArray[np.int64]
    num_tokens: NDArray[np.int32]
    is_finished: NDArray[np.bool_]

    @classmethod
    def none(cls) -> Observations:
        return cls(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.bool_))

    def without(self, requests: NDArray[np.int64]) -> Observations:
        """Those of other requests than these."""
        is_other = ~np.isin(self.request, requests)
        return Observations(self.request[is_other], self.num_tokens[is_other], self.is_finished[is_other])

    def joined_with(self, others: Observations) -> Observations:
        """Both; a request must not be in both."""
        return Observations(
            np.concatenate([self.request, others.request]),
            np.concatenate([self.num_tokens, others.num_tokens]),
            np.concatenate([self.is_finished, others.is_finished]),
        )


@dataclass(frozen=True, slots=True)
class LengthError:
    """``bias`` is estimated over actual tokens in all, less 1; ``mape`` the mean absolute error as a share of the actual."""

    bias: float
    mape: float


def estimate_lengths(
    tree: PrefixTree,
    requests: RequestTable,
    observations: Observations | None = None,
    groups: NDArray | None = None,
    expected_output_tokens: NDArray | None = None,
) -> LengthEstimates:
    """Estimate every request's output length.

    Groups are subtrees, divided by the column ``groups`` [R] where one is given. Rows with ``ignore_eos`` are exact, and
    ``expected_output_tokens`` [R] is believed where it is positive. Every estimate is capped by the row's ``max_tokens``.
    Raises ValueError where a column has another length than the table.
    """
    _check_columns(requests, groups=groups, expected_output_tokens=expected_output_tokens)
    max_tokens = requests.sampling.max_tokens
    if observations is None or len(observations.request) == 0:
        distributions = _prior(max_tokens)
    else:
        distributions = _distributions(_groups(tree, groups), requests, observations)
    known = np.where(requests.sampling.ignore_eos, max_tokens, 0).astype(np.int64)
    if expected_output_tokens is not None:
        believed = np.minimum(np.nan_to_num(expected_output_tokens, nan=0.0), max_tokens).astype(np.int64)
        known = np.where(known > 0, known, np.maximum(believed, 0))
    return _per_request(_with_known(distributions, known), max_tokens)


def expected_remaining_tokens(
    estimates: LengthEstimates, requests: NDArray[np.int64], age: NDArray[np.int32], max_tokens: NDArray[np.int32]
) -> NDArray[np.float64]:
    """[K] output tokens still to come of ``requests`` that have reached ``age`` [K] tokens, at most ``max_tokens`` [K] in all.

    A request that has outlived its whole group is expected to run as long again.
    """
    return remaining_tokens(estimates.bin_tokens, estimates.group[requests], age, max_tokens)


def longest_tokens(estimates: LengthEstimates, max_tokens: NDArray[np.int32]) -> NDArray[np.float64]:
    """[R] how long the longest output of each request's group is expected to get, within the request's limit."""
    if len(estimates.bin_tokens) == 0:
        return estimates.mean_tokens.astype(np.float64)
    num_requests = np.bincount(estimates.group, minlength=len(estimates.bin_tokens))
    # Of n outputs the longest lies about at the quantile 1 - 1 / 2n.
    top_bin = np.searchsorted(BIN_EDGES, 1 - 0.5 / np.maximum(num_requests, 1), side="right") - 1
    longest = estimates.bin_tokens[np.arange(len(top_bin)), top_bin]
    return np.minimum(longest[estimates.group], max_tokens).astype(np.float64)


def estimate_error(estimates: LengthEstimates, actual: NDArray) -> LengthError:
    """Bias and MAPE against ``actual`` [R] output tokens; entries below 1 (errors, unknown) are left out."""
    is_known = actual > 0
    if not is_known.any():
        return LengthError(0.0, 0.0)
    estimated, true = estimates.mean_tokens[is_known].astype(np.float64), actual[is_known].astype(np.float64)
    return LengthError(float(estimated.sum() / true.sum() - 1), float(np.mean(np.abs(estimated - true) / true)))


def _check_columns(requests: RequestTable, **columns: NDArray | None) -> None:
    for name, column in columns.items():
        if column is not None and len(column) != requests.num_requests:
            raise ValueError(f"{name} has {len(column)} entries for {requests.num_requests} requests; give one per request")


def _groups(tree: PrefixTree, column: NDArray | None) -> Groups:
    groups = tree_groups(tree)
    return groups if column is None else column_groups(column, groups)


class _Distributions(NamedTuple):
    """Innermost group of each request [R]; every group's distribution [G, B], and whether it is a guess [G]."""

    group: NDArray[np.int64]
    bin_tokens: NDArray[np.float64]
    is_guess: NDArray[np.bool_]


def _prior(max_tokens: NDArray[np.int32]) -> _Distributions:
    """Uniform up to twice the prior's share of ``max_tokens``, at least one token: a group per distinct limit."""
    limits, group = np.unique(max_tokens, return_inverse=True)
    middle = (BIN_EDGES[:-1] + BIN_EDGES[1:]) / 2
    bin_tokens = np.maximum(np.outer(limits.astype(np.float64), 2 * PRIOR_SHARE_OF_MAX * middle), 1.0)
    return _Distributions(group, bin_tokens, np.ones(len(limits), np.bool_))


def _distributions(groups: Groups, requests: RequestTable, observations: Observations) -> _Distributions:
    """What the observations tell of every group."""
    seen = observations.request
    # An output cut off at its limit is only known to be at least that long.
    is_finished = observations.is_finished & (observations.num_tokens < requests.sampling.max_tokens[seen])
    innermost = groups.of_request[seen].astype(np.int64)
    # Groups are sampled at different rates; in an outer group each counts with its requests, not with its samples.
    weight = (groups.sizes() / np.maximum(np.bincount(innermost, minlength=groups.num_groups), 1))[innermost]
    group, observation = _in_all_outer_groups(groups, innermost)
    bins = kaplan_meier_bins(
        group,
        observations.num_tokens[observation],
        is_finished[observation],
        weight[observation],
        int(requests.sampling.max_tokens.max()),
        groups.num_groups,
    )
    num_samples = np.bincount(group, minlength=groups.num_groups)
    num_ended = np.bincount(group[is_finished[observation]], minlength=groups.num_groups)
    return _Distributions(groups.of_request.astype(np.int64), shrink(groups, bins, num_samples), 2 * num_ended <= num_samples)


def _in_all_outer_groups(groups: Groups, innermost: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs (group, observation) for every group that an observation lies in."""
    group, observation = innermost, np.arange(len(innermost))
    pairs = []
    while len(group):
        pairs.append((group, observation))
        up = groups.parent[group].astype(np.int64)
        group, observation = up[up >= 0], observation[up >= 0]
    return np.concatenate([g for g, _ in pairs]), np.concatenate([o for _, o in pairs])


def _with_known(distributions: _Distributions, known: NDArray[np.int64]) -> _Distributions:
    """Give requests of known length (positive) groups of their own, one per length."""
    lengths, position = np.unique(known[known > 0], return_inverse=True)
    group = distributions.group.copy()
    group[known > 0] = len(distributions.bin_tokens) + position
    return _Distributions(
        group,
        np.concatenate([distributions.bin_tokens, np.outer(lengths.astype(np.float64), np.ones(NUM_BINS))]),
        np.concatenate([distributions.is_guess, np.zeros(len(lengths), np.bool_)]),
    )


def _per_request(distributions: _Distributions, max_tokens: NDArray[np.int32]) -> LengthEstimates:
    """Moments of each (group, limit) that occurs, handed to its requests."""
    group, bin_tokens, is_guess = distributions
    keys, pair = np.unique((group << 32) | max_tokens, return_inverse=True)
    mean, second_moment = capped_moments(bin_tokens[keys >> 32], keys & 0xFFFFFFFF)
    return LengthEstimates(
        mean_tokens=mean[pair].astype(np.float32),
        second_moment=second_moment[pair].astype(np.float32),
        group=group.astype(np.int32),
        bin_tokens=bin_tokens.astype(np.float32),
        bin_probability=BIN_PROBABILITY.astype(np.float32),
        is_guess=is_guess,
    )
