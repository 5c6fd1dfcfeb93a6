"""Prompt and output lengths of synthetic traces, with the means and densities that the paper reports.

These traces are ours, not recordings. One rule makes them all: lengths are log-normal, their means are those of the
paper's table of traces, and the spread of the outputs is the one that gives the trace the paper's compute density (the sum of
compute over the sum of memory time, shared prefixes computed once). Nothing is left to choose by what a schedule makes of it.

    trace         mean in, out     density: paper, ours   if every output had the mean length
    BurstGPT      244, 27           17.78, 17.9           31
    WildChat      496, 256           2.13,  2.2            3.4
    MMLU          804, 2            54.91, 56.5           56.5
    OpenVid       121, 16 K          0.05,  0.050          0.10
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of N requests. Requests of one group share their first ``num_prefix_tokens``, as far as both have them.

    All arrays are [N] int32; ``prefix_group`` is -1 for a request of no group. Every prompt of the trace starts with the same
    ``num_system_tokens``; they are part of ``num_prompt_tokens`` and of ``num_prefix_tokens``.
    """

    num_prompt_tokens: NDArray[np.int32]
    num_output_tokens: NDArray[np.int32]
    prefix_group: NDArray[np.int32]
    num_prefix_tokens: NDArray[np.int32]
    num_system_tokens: int = 0

    def __len__(self) -> int:
        return len(self.num_prompt_tokens)

    def take(self, rows: NDArray[Any]) -> Lengths:
        return Lengths(
            self.num_prompt_tokens[rows],
            self.num_output_tokens[rows],
            self.prefix_group[rows],
            self.num_prefix_tokens[rows],
            self.num_system_tokens,
        )


VIDEO_VARIATION = 1.1
LONGEST_VIDEO = 8
"""Standard deviation of a video's length, and the longest there is, both over the mean; 8 x 16 K is Llama-3's context."""

LengthSource = Callable[[int, np.random.Generator], Lengths]
"""Draws the lengths of so many requests."""


def burst_like(num_requests: int, rng: np.random.Generator) -> Lengths:
    """BurstGPT-like, compute-heavy: mean 244 in and 27 out, density 17.8. Long prompts tend to have long answers."""
    prompts, outputs = _lognormal_pairs(num_requests, rng, means=(244, 27), variations=(1.3, 1.9), correlation=0.36)
    return _without_groups(prompts, outputs, num_system_tokens=5)


def wildchat_like(num_requests: int, rng: np.random.Generator) -> Lengths:
    """WildChat-like: mean 496 in and 256 out, density 2.1. A hundred templates make up 19 % of the prompt tokens."""
    prompts, outputs = _lognormal_pairs(num_requests, rng, means=(402, 256), variations=(1.8, 1.3), correlation=0.25)
    group = rng.integers(0, 100, num_requests, dtype=np.int32)
    prefix = np.full(num_requests, 94, np.int32)
    return Lengths(prompts + prefix, outputs, group, prefix, num_system_tokens=5)


def mmlu_like(num_requests: int, rng: np.random.Generator) -> Lengths:
    """MMLU-like, high sharing: mean 804 in and 2 out; 57 subjects whose few-shot prompts are 86 % of the tokens."""
    prefixes = 5 + _lognormal(np.random.default_rng(57).standard_normal(57), mean=690, variation=0.5)
    prefixes = (prefixes * (695 / prefixes.mean())).astype(np.int32)
    group = rng.permutation(num_requests).astype(np.int32) % 57
    questions = _lognormal(rng.standard_normal(num_requests), mean=109, variation=0.5)
    return Lengths(prefixes[group] + questions, np.full(num_requests, 2, np.int32), group, prefixes[group], 5)


def openvid_like(num_requests: int, rng: np.random.Generator, mean_output: int = 16384) -> Lengths:
    """OpenVid-like, memory-heavy: mean 121 in and 16 K out, density 0.05; outputs are videos of any length.

    Outputs of one length would have twice that density, so the paper's videos differ widely: E[d^2] is about 2 E[d]^2.
    A smaller ``mean_output`` makes more and shorter videos of the same traffic, for mixes of few requests.
    """
    prompts = _lognormal(rng.standard_normal(num_requests), mean=121, variation=0.4)
    outputs = _lognormal(_spread_normals(num_requests, rng), mean=mean_output, variation=VIDEO_VARIATION)
    return _without_groups(prompts, np.minimum(outputs, LONGEST_VIDEO * mean_output), num_system_tokens=1)


def resample(lengths: Lengths, num_requests: int, rng: np.random.Generator) -> Lengths:
    """``num_requests`` rows in random order, each row used equally often (give or take one)."""
    return lengths.take(evenly(len(lengths), num_requests, rng))


def evenly(num_rows: int, num_requests: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """``num_requests`` of the numbers below ``num_rows``, in random order and equally often (give or take one)."""
    if not num_rows:
        raise ValueError("the file has no rows to draw from")
    return rng.permutation(num_rows)[np.arange(num_requests) % num_rows]


SOURCES: dict[str, LengthSource] = {
    "burst": burst_like,
    "wildchat": wildchat_like,
    "mmlu": mmlu_like,
    "openvid": openvid_like,
}


def _lognormal(normal: NDArray[np.float64], mean: float, variation: float) -> NDArray[np.int32]:
    """Whole numbers, at least 1, from standard normals; ``variation`` is the standard deviation over the mean."""
    variance = np.log1p(variation**2)
    values = np.exp(np.log(mean) - variance / 2 + np.sqrt(variance) * normal)
    return np.maximum(1, np.rint(values)).astype(np.int32)


def _spread_normals(num_draws: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Standard normals, one from each of ``num_draws`` equally likely ranges, in random order.

    A mix has a few hundred videos. Drawn freely, their sum of squares, which is most of the memory time, would be off by 40 %.
    """
    quantiles = (rng.permutation(num_draws) + rng.uniform(0.001, 0.999, num_draws)) / max(num_draws, 1)
    return np.array([NormalDist().inv_cdf(quantile) for quantile in quantiles])


def _lognormal_pairs(
    num_requests: int,
    rng: np.random.Generator,
    means: tuple[float, float],
    variations: tuple[float, float],
    correlation: float,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    first, other = rng.standard_normal((2, num_requests))
    second = correlation * first + np.sqrt(1 - correlation**2) * other
    return _lognormal(first, means[0], variations[0]), _lognormal(second, means[1], variations[1])


def _without_groups(prompts: NDArray[np.int32], outputs: NDArray[np.int32], num_system_tokens: int) -> Lengths:
    prefix = np.minimum(prompts, num_system_tokens).astype(np.int32)
    return Lengths(prompts, outputs, np.full(len(prompts), -1, np.int32), prefix, num_system_tokens)
