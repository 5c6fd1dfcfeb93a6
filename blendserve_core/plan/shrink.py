"""Pulling the length distributions of small groups towards their parent's, as far as the data say (empirical Bayes)."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from blendserve_core.plan.groups import Groups
from blendserve_core.plan.survival import BIN_PROBABILITY, NUM_BINS

SHAPE_SAMPLES = 4.0
"""A group's own spread counts as much as its siblings' from this many samples on."""

WEIGHT_BOUNDS = (0.1, 16.0)
MIN_VARIANCE = 1e-3


def shrink(groups: Groups, bins: NDArray[np.float64], num_samples: NDArray[np.int64]) -> NDArray[np.float64]:
    """[G, B] distributions after shrinkage; ``bins`` [G, B] and ``num_samples`` [G] are those of whole subtrees of groups.

    Works on the log scale, where a rare class of giant outputs cannot flood its siblings: a group's location moves towards its
    parent's with the weight k / (n + k), where k is the ratio of the variance within groups to the variance between them, and
    its spread towards that of its siblings. Groups without samples take their parent's distribution.
    """
    log_bins = np.log(bins)
    location = log_bins @ BIN_PROBABILITY
    shape = log_bins - location[:, None]
    credibility = _credibility(groups, location, shape, num_samples)
    siblings_shape = _mean_shape_of_children(groups, shape, num_samples)
    return np.exp(_top_down(groups.parent, location, shape, siblings_shape, num_samples, credibility))


def _credibility(
    groups: Groups, location: NDArray[np.float64], shape: NDArray[np.float64], num_samples: NDArray[np.int64]
) -> float:
    """k = variance within / variance between groups: how many samples weigh as much as the parent."""
    known = np.flatnonzero((num_samples >= 2) & (groups.parent >= 0))
    if len(known) == 0:
        return 1.0
    n = num_samples[known]
    variances = (shape[known] ** 2) @ BIN_PROBABILITY * n / (n - 1)
    within = max(float(np.average(variances, weights=n)), MIN_VARIANCE)
    apart = (location[known] - location[groups.parent[known]]) ** 2
    between = max(float(np.mean(apart - within / n)), MIN_VARIANCE)
    return float(np.clip(within / between, *WEIGHT_BOUNDS))


def _mean_shape_of_children(groups: Groups, shape: NDArray[np.float64], num_samples: NDArray[np.int64]) -> NDArray[np.float64]:
    """[G, B] mean shape of each group's children, by their samples."""
    total, weight = np.zeros((groups.num_groups, NUM_BINS)), np.zeros(groups.num_groups)
    children = np.flatnonzero((groups.parent >= 0) & (num_samples > 0))
    np.add.at(total, groups.parent[children], shape[children] * num_samples[children, None])
    np.add.at(weight, groups.parent[children], num_samples[children])
    return np.divide(total, weight[:, None], out=shape.copy(), where=weight[:, None] > 0)


@njit(cache=True)
def _top_down(parent, location, shape, siblings_shape, num_samples, credibility):
    log_bins = np.empty(shape.shape)
    shrunk_location = location.copy()
    log_bins[0] = location[0] + shape[0]
    for group in range(1, len(parent)):
        up, n = parent[group], num_samples[group]
        if n == 0:
            shrunk_location[group], log_bins[group] = shrunk_location[up], log_bins[up]
            continue
        own = n / (n + credibility)
        shrunk_location[group] = own * location[group] + (1 - own) * shrunk_location[up]
        own_shape = n / (n + SHAPE_SAMPLES)
        log_bins[group] = shrunk_location[group] + own_shape * shape[group] + (1 - own_shape) * siblings_shape[up]
    return log_bins
