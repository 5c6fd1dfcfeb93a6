"""Pulling the length distributions of small groups towards their parent's, as far as the data say (empirical Bayes)."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from blendserve_core.plan.arrays import sum_by
from blendserve_core.plan.groups import Groups
from blendserve_core.plan.survival import BIN_PROBABILITY, NUM_BINS

SHAPE_SAMPLES = 4.0
"""With so many samples a group's own shape counts as much as its siblings'."""

MIN_VARIANCE = 1e-3


def shrink(groups: Groups, bins: NDArray[np.float64], num_samples: NDArray[np.int64]) -> NDArray[np.float64]:
    """[G, B] distributions after shrinkage; ``bins`` [G, B] and ``num_samples`` [G] are those of whole subtrees of groups.

    Works on logarithms, where a rare class of giant outputs cannot flood its siblings. A group's mean moves towards its
    parent's by the share that chance would explain of their distance; its shape (lengths over their mean) towards that of its
    siblings by the number of its samples. Groups without samples take their parent's distribution.
    """
    mean = bins @ BIN_PROBABILITY
    shape = np.log(bins / mean[:, None])
    own_weight = _own_weight(groups, np.log(mean), (bins * bins) @ BIN_PROBABILITY / mean**2 - 1, num_samples)
    siblings_shape = _mean_shape_of_children(groups, shape, num_samples)
    return _top_down(groups.parent, np.log(mean), shape, siblings_shape, num_samples, own_weight, BIN_PROBABILITY)


def _own_weight(
    groups: Groups, log_mean: NDArray[np.float64], relative_variance: NDArray[np.float64], num_samples: NDArray[np.int64]
) -> NDArray[np.float64]:
    """[G] weight of a group's own mean: variance between / (variance between + variance of its sample mean)."""
    children = np.flatnonzero((groups.parent >= 0) & (num_samples > 0))
    parent, n = groups.parent[children], num_samples[children]
    size = groups.num_groups
    # Siblings lend their variance to a group of few samples; a single sample has none of its own.
    own = np.where(n >= 2, relative_variance[children] * n / np.maximum(n - 1, 1), 0.0)
    weight = np.where(n >= 2, n, 0)
    overall = np.average(own, weights=weight) if weight.any() else 1.0
    siblings = _mean_by(parent, own, weight, size, overall)[parent]
    within = (weight * own + SHAPE_SAMPLES * siblings) / (weight + SHAPE_SAMPLES)
    chance = np.maximum(within, MIN_VARIANCE) / n
    between = (log_mean[children] - log_mean[parent]) ** 2 - chance
    among_siblings = _mean_by(parent, between, np.ones(len(n)), size, 0.0)[parent]
    between = np.maximum(np.maximum(between, among_siblings), 0.0)
    own_weight = np.zeros(size)
    own_weight[children] = between / (between + chance)
    return own_weight


def _mean_by(
    index: NDArray[np.int32], values: NDArray[np.float64], weights: NDArray, size: int, default: float
) -> NDArray[np.float64]:
    """[size] weighted mean of the values at each index, ``default`` where there are none."""
    total, weight = sum_by(index, values * weights, size), sum_by(index, weights, size)
    return np.divide(total, weight, out=np.full(size, default), where=weight > 0)


def _mean_shape_of_children(groups: Groups, shape: NDArray[np.float64], num_samples: NDArray[np.int64]) -> NDArray[np.float64]:
    """[G, B] mean shape of each group's children, by their samples."""
    total, weight = np.zeros((groups.num_groups, NUM_BINS)), np.zeros(groups.num_groups)
    children = np.flatnonzero((groups.parent >= 0) & (num_samples > 0))
    np.add.at(total, groups.parent[children], shape[children] * num_samples[children, None])
    np.add.at(weight, groups.parent[children], num_samples[children])
    return np.divide(total, weight[:, None], out=shape.copy(), where=weight[:, None] > 0)


@njit(cache=True)
def _top_down(parent, log_mean, shape, siblings_shape, num_samples, own_weight, bin_probability):
    bins = np.empty(shape.shape)
    shrunk = log_mean.copy()
    bins[0] = np.exp(log_mean[0] + shape[0])
    for group in range(1, len(parent)):
        up, n = parent[group], num_samples[group]
        if n == 0:
            shrunk[group], bins[group] = shrunk[up], bins[up]
            continue
        shrunk[group] = own_weight[group] * log_mean[group] + (1 - own_weight[group]) * shrunk[up]
        own_shape = n / (n + SHAPE_SAMPLES)
        relative = np.exp(own_shape * shape[group] + (1 - own_shape) * siblings_shape[up])
        bins[group] = np.exp(shrunk[group]) * relative / (relative * bin_probability).sum()
    return bins
