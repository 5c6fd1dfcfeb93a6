"""Length distributions kept up to date with what a run shows: the plan's estimates, what ended since, and what still runs.

The rare long outputs decide how much memory time is left, and a sample of a few ends before they do. Counting only what has
ended would be biased short, so what still runs counts as at least as long as it is (Kaplan and Meier's estimator).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blendserve_core.plan.plan import LengthEstimates
from blendserve_core.plan.survival import BIN_EDGES, survival_bins

CELL_GROWTH = 1.02
"""Lengths are counted in cells this much wider than the one before."""

PRIOR_SAMPLES = 4.0
"""The plan's estimate of a group counts as so many outputs that ended, where it is not a guess."""


class LengthsSeen:
    """``bin_tokens`` [G, B] float64 is the mean length in each probability bin of each group, as in the plan's estimates.

    Only groups of ``requests`` whose lengths are not known exactly are followed; the others stay as planned.
    """

    def __init__(self, estimates: LengthEstimates, requests: NDArray[np.int64], max_outputs: NDArray[np.int32]) -> None:
        self.bin_tokens = estimates.bin_tokens.astype(np.float64)
        self._group = estimates.group
        self._limit = float(max_outputs[requests].max(initial=1))
        self._followed = _groups_to_follow(estimates, requests)
        self._is_guess = estimates.is_guess[self._followed]
        self._slot = np.full(len(self.bin_tokens), -1, dtype=np.int64)
        self._slot[self._followed] = np.arange(len(self._followed))
        num_cells = int(np.log(max(self._limit, 2.0)) / np.log(CELL_GROWTH)) + 2
        self._cell_tokens = CELL_GROWTH ** np.arange(num_cells)
        self._ended = np.zeros((len(self._followed), num_cells))
        self._prior = self._count(
            np.repeat(np.arange(len(self._followed)), self.bin_tokens.shape[1]),
            self.bin_tokens[self._followed].ravel(),
            np.outer(np.where(self._is_guess, 0.0, PRIOR_SAMPLES), estimates.bin_probability).ravel(),
        )

    def observe(self, requests: NDArray[np.int64], num_outputs: NDArray[np.int32]) -> None:
        """These requests have ended with so many output tokens."""
        slot = self._slot[self._group[requests]]
        is_followed = slot >= 0
        self._ended += self._count(slot[is_followed], num_outputs[is_followed])

    def refresh(self, running: NDArray[np.int64], num_outputs: NDArray[np.int32]) -> None:
        """Make the distributions anew; ``running`` have so many outputs by now, those that wait with some among them."""
        slot = self._slot[self._group[running]]
        is_followed = (slot >= 0) & (num_outputs > 0)
        still_running = self._count(slot[is_followed], num_outputs[is_followed])
        # A guess is as good as another until a first output has ended.
        is_news = self._ended.any(axis=1) | (still_running.any(axis=1) & ~self._is_guess)
        if is_news.any():
            bins = self._estimate((self._prior + self._ended)[is_news], still_running[is_news])
            self.bin_tokens[self._followed[is_news]] = bins

    def _estimate(self, ended: NDArray[np.float64], running: NDArray[np.float64]) -> NDArray[np.float64]:
        """[F, B] from weights of cells [F, C]. In a cell what ended comes before what runs on."""
        weight = np.stack([ended, running], axis=2).reshape(len(ended), -1)
        is_seen = weight > 0
        indptr = np.concatenate([[0], np.cumsum(is_seen.sum(axis=1))])
        tokens = np.broadcast_to(np.repeat(self._cell_tokens, 2), weight.shape)[is_seen]
        has_ended = np.broadcast_to(np.tile([True, False], len(self._cell_tokens)), weight.shape)[is_seen]
        return survival_bins(indptr, tokens, has_ended, weight[is_seen], self._limit, BIN_EDGES)

    def _count(
        self, slot: NDArray[np.int64], num_tokens: NDArray, weight: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """[F, C] weights by followed group and cell of length."""
        num_cells = len(self._cell_tokens)
        cell = np.rint(np.log(np.maximum(num_tokens, 1)) / np.log(CELL_GROWTH)).astype(np.int64)
        index = slot * num_cells + np.minimum(cell, num_cells - 1)
        counts = np.bincount(index, weight, minlength=len(self._followed) * num_cells)
        return counts.astype(np.float64).reshape(-1, num_cells)


def _groups_to_follow(estimates: LengthEstimates, requests: NDArray[np.int64]) -> NDArray[np.int64]:
    groups = np.unique(estimates.group[requests])
    bins = estimates.bin_tokens[groups]
    return groups[bins[:, 0] < bins[:, -1]].astype(np.int64) if bins.size else groups[:0].astype(np.int64)
