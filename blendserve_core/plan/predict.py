"""Predicted seconds of shards from estimated lengths: how long an order would take before a GPU is taken."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blendserve_core.perf.optimum import REFERENCE_STEP_TOKENS
from blendserve_core.plan.arrays import sum_by
from blendserve_core.plan.sharing import shared_within
from blendserve_core.plan.workload import Workload


@dataclass(frozen=True, slots=True)
class Prediction:
    """[N] per shard: compute and memory seconds of its requests, and seconds on the engine."""

    tc_s: NDArray[np.float64]
    tm_s: NDArray[np.float64]
    predicted_s: NDArray[np.float64]


def predict(workload: Workload, order: NDArray[np.int64], shard_indptr: NDArray[np.int64], *, is_mixed: bool) -> Prediction:
    """Predict every shard; ``shard_indptr`` [N + 1] is a CSR over ``order``.

    A mixed shard scans its order from both ends and blends all of it. Otherwise the requests that fit the KV pool together
    form a window, and compute and memory overlap only inside it. Every step pays its constants, and there are at least as many
    steps as the longest output has tokens.
    """
    num_shards = len(shard_indptr) - 1
    shard = np.repeat(np.arange(num_shards), np.diff(shard_indptr))
    window = shard if is_mixed else _windows(workload, order, shard)
    shard_of_window = np.zeros(int(window.max(initial=-1)) + 1, np.int64)
    shard_of_window[window] = shard

    cached = shared_within(workload.tree, order, shard)
    tc_s, tm_s = workload.compute_s(order, cached), workload.memory_s(order)
    longest = np.zeros(num_shards)
    np.maximum.at(longest, shard, workload.longest_tokens()[order])
    num_steps = _at_least(longest, _num_steps(workload, order, cached, window), shard_of_window)
    cost = workload.cost
    seconds = cost.combine(
        sum_by(window, tc_s) + cost.gemm_fixed_s * num_steps, sum_by(window, tm_s) + cost.decode_fixed_s * num_steps
    )
    return Prediction(
        tc_s=sum_by(shard, tc_s, num_shards),
        tm_s=sum_by(shard, tm_s, num_shards),
        predicted_s=sum_by(shard_of_window, seconds, num_shards),
    )


def _num_steps(
    workload: Workload, order: NDArray[np.int64], num_cached_tokens: NDArray[np.int32], window: NDArray[np.int64]
) -> NDArray[np.float64]:
    """[W] steps each window's work takes: all KV reads at a full pool, or all tokens in full steps."""
    num_tokens = workload.num_prompt_tokens[order] - num_cached_tokens + workload.estimates.mean_tokens[order]
    pool_steps = sum_by(window, workload.kv_reads(order)) / workload.cost.kv_capacity_tokens
    return np.maximum(pool_steps, sum_by(window, num_tokens.astype(np.float64)) / REFERENCE_STEP_TOKENS)


def _at_least(
    longest: NDArray[np.float64], num_steps: NDArray[np.float64], shard_of_window: NDArray[np.int64]
) -> NDArray[np.float64]:
    """[W] steps, stretched where a shard's work takes fewer than its longest output [N] has tokens."""
    of_work = np.maximum(sum_by(shard_of_window, num_steps, len(longest)), np.finfo(float).tiny)
    return num_steps * np.maximum(longest / of_work, 1.0)[shard_of_window]


def _windows(workload: Workload, order: NDArray[np.int64], shard: NDArray[np.int64]) -> NDArray[np.int64]:
    """[K] window of each request, numbered along the order: its mean KV, filled up to the pool's size."""
    held = workload.num_prompt_tokens[order] + workload.estimates.mean_tokens[order].astype(np.float64) / 2
    filled = np.floor(np.cumsum(held) / workload.cost.kv_capacity_tokens)
    is_new = (np.diff(filled, prepend=-1) > 0) | (np.diff(shard, prepend=-1) > 0)
    return np.cumsum(is_new) - 1
