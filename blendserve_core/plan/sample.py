"""Which requests to generate first, so that output lengths can be estimated (paper section 5.2)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from blendserve_core.plan.groups import MAX_GROUP_DEPTH, MIN_GROUP_REQUESTS, Groups, column_groups, tree_groups
from blendserve_core.plan.tree import PrefixTree
from blendserve_core.requests import RequestTable

MIN_SAMPLES = 8
MAX_SHARE = 0.1
MAX_MINIMUM = 1024
"""Eight per group may add up to this many samples and this share of the job, whatever the fraction; else groups are coarser."""


def choose_sample(
    tree: PrefixTree,
    requests: RequestTable,
    fraction: float,
    seed: int,
    groups: NDArray | None = None,
    expected_output_tokens: NDArray | None = None,
) -> NDArray[np.int64]:
    """Request indices to sample, sorted: about ``fraction`` of each group, and never fewer than 8 of one.

    Groups are subtrees with at least 8 requests, divided by the column ``groups`` [R] where one is given. Where 8 of each
    would exceed ``fraction`` of the job and also a tenth of it or 1024, groups are coarser: inner ones join outer ones, and
    small ones the rest, as far as needed; values of the column stay apart as long as each can have one. Outermost groups get
    32 or 16 where half of ``fraction`` has room for that: a family that stands alone has no siblings to learn from.

    Inside a group the sample is spread evenly over the tree. Rows of known length (``ignore_eos``, or a positive
    ``expected_output_tokens`` [R]) are left out, and ``fraction`` 0 samples nothing. The same seed gives the same sample.
    Raises ValueError for a fraction outside [0, 1].
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"sample fraction is {fraction}; it is a share of the requests, from 0 to 1")
    is_known = requests.sampling.ignore_eos
    if expected_output_tokens is not None:
        is_known = is_known | (expected_output_tokens > 0)
    in_tree_order = tree.request_order[~is_known[tree.request_order]]
    if fraction == 0 or len(in_tree_order) == 0:
        return np.empty(0, np.int64)
    num_requests = len(in_tree_order)
    budget = int(np.ceil(max(fraction * num_requests, min(MAX_SHARE * num_requests, MAX_MINIMUM))))
    groups_of_all = _finest_groups(tree, in_tree_order, budget, groups)
    stratum = groups_of_all.of_request[in_tree_order]
    sizes = np.bincount(stratum, minlength=groups_of_all.num_groups)
    least = _least_samples(sizes, groups_of_all.parent <= 0, budget, fraction * num_requests)
    wanted = np.minimum(np.maximum(np.ceil(fraction * sizes).astype(np.int64), least), sizes)
    members = in_tree_order[np.argsort(stratum, kind="stable")]
    return np.sort(members[_spread_positions(sizes, wanted, np.random.default_rng(seed))])


def _finest_groups(tree: PrefixTree, members: NDArray[np.int64], budget: int, column: NDArray | None) -> Groups:
    """The finest groups whose minimum samples fit ``budget``; if none do, the column's values alone or one group of all."""
    for min_requests, max_depth in _coarser_and_coarser(len(members)):
        groups = tree_groups(tree, min_requests, max_depth)
        groups = groups if column is None else column_groups(column, groups)
        if np.minimum(np.bincount(groups.of_request[members]), MIN_SAMPLES).sum() <= budget:
            return groups
    whole = Groups(np.zeros(len(tree.request_order), np.int32), np.array([-1], np.int32))
    if column is None or len(np.unique(column[members])) > budget:
        return whole
    return column_groups(column, whole)


def _coarser_and_coarser(num_requests: int) -> Iterator[tuple[int, int]]:
    """(min_requests, max_depth) from the finest groups on."""
    min_requests = MIN_GROUP_REQUESTS
    while min_requests <= num_requests:
        for max_depth in (MAX_GROUP_DEPTH, 3, 2, 1):
            yield min_requests, max_depth
        min_requests *= 2


def _least_samples(
    sizes: NDArray[np.int64], is_outermost: NDArray[np.bool_], budget: int, num_asked: float
) -> NDArray[np.int64] | int:
    """[G] or scalar, the least number of samples of each group."""
    for outermost in (4 * MIN_SAMPLES, 2 * MIN_SAMPLES):
        least = np.where(is_outermost, outermost, MIN_SAMPLES)
        if np.minimum(sizes, least).sum() <= num_asked / 2:
            return least
    if np.minimum(sizes, MIN_SAMPLES).sum() <= budget:
        return MIN_SAMPLES
    return min(MIN_SAMPLES, budget // int(np.count_nonzero(sizes)))


def _spread_positions(sizes: NDArray[np.int64], wanted: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Positions in consecutive runs of ``sizes``: each run is cut into ``wanted`` equal slices, with one drawn from each."""
    run = np.repeat(np.arange(len(sizes)), wanted)
    rank = np.arange(len(run)) - np.repeat(np.cumsum(wanted) - wanted, wanted)
    low, high = (rank * sizes[run]) // wanted[run], ((rank + 1) * sizes[run]) // wanted[run]
    return np.repeat(np.cumsum(sizes) - sizes, wanted) + low + (rng.random(len(run)) * (high - low)).astype(np.int64)
