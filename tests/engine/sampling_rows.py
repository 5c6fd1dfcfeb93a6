"""Rows of sampling parameters, an exact naive distribution to compare draws with, and the chi-square test."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blendserve_core.engine.rng import uniforms
from blendserve_core.engine.sampling import RowParameters


def row_parameters(
    num_rows: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> RowParameters:
    """The same parameters for every row, each with a key of its own."""
    return RowParameters(
        temperature=np.full(num_rows, temperature, dtype=np.float32),
        top_k=np.full(num_rows, top_k, dtype=np.int64),
        top_p=np.full(num_rows, top_p, dtype=np.float32),
        min_p=np.full(num_rows, min_p, dtype=np.float32),
        uniform=uniforms(np.arange(num_rows, dtype=np.uint64), np.full(num_rows, 3, dtype=np.int32)),
    )


def exact_distribution(
    logits: NDArray[np.float64], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> NDArray[np.float64]:
    """Softmax [V] in float64, truncated one option after the other as the documentation says."""
    weights = np.exp((logits - logits.max()) / temperature)
    ranked = np.argsort(-weights, kind="stable")
    if top_k:
        weights[ranked[top_k:]] = 0.0
    probabilities = weights / weights.sum()
    before = np.cumsum(probabilities[ranked]) - probabilities[ranked]
    probabilities[ranked[before >= top_p]] = 0.0
    probabilities[probabilities < min_p * probabilities.max()] = 0.0
    return probabilities / probabilities.sum()


def assert_drawn_from(token_ids: NDArray[np.int32], probabilities: NDArray[np.float64]) -> None:
    """Chi-square at four standard deviations; rare tokens are counted together, impossible ones must not occur."""
    counts = np.bincount(token_ids, minlength=len(probabilities))
    assert not counts[probabilities == 0.0].any()
    expected = probabilities * len(token_ids)
    is_rare = expected < 10
    observed = np.append(counts[~is_rare], counts[is_rare].sum())
    expected = np.append(expected[~is_rare], expected[is_rare].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    chi_square, freedom = ((observed - expected) ** 2 / expected).sum(), len(expected) - 1
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom) + 4
