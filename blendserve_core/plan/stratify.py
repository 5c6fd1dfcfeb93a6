"""Dealing pieces to shards so that the longest outputs lie together.

A rank steps on until its longest output ends, and pays every step's constants. Where a few outputs are far longer than the
others that is much of a rank's time, so it should be paid on as few ranks as can hold these outputs: the first rank gets the
longest of all, with those of the next ones that it has time for, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.optimum import REFERENCE_STEP_TOKENS
from blendserve_core.plan.pieces import Pieces

NUM_HALVINGS = 20
SLACKS = np.linspace(1.0, 1.6, 7)
"""How much more than the least memory time a rank may get. More brings more long outputs together, where compute is scarcer."""

UNDEALT = -1


def stratify(pieces: Pieces, num_shards: int, cost: CostModel) -> NDArray[np.int64]:
    """[P] shard of each piece: the memory-intensive ones by length, then each other one to where it is done first."""
    seconds, longest = pieces.seconds, pieces.longest
    is_long = seconds[:, 1] > seconds[:, 0]
    longest_first = np.flatnonzero(is_long)[np.argsort(-longest[is_long], kind="stable")]
    largest_first = np.flatnonzero(~is_long)[np.argsort(-seconds[~is_long, 0], kind="stable")]
    rank_time = _RankTime.of(cost)
    long_seconds, long_outputs = seconds[longest_first, 1], longest[longest_first]
    least_s = _least_limit_s(long_seconds, long_outputs, num_shards, rank_time)
    dealt = []
    for slack in SLACKS:
        shard = np.full(len(seconds), UNDEALT, np.int64)
        shard[longest_first] = _fill(long_seconds, long_outputs, num_shards, least_s * slack, rank_time)
        dealt.append((_deal_rest(shard, largest_first, pieces, num_shards, rank_time), shard))
    return min(dealt, key=lambda result: result[0])[1]


@dataclass(frozen=True, slots=True)
class _RankTime:
    """What a rank needs for some work, with the constants of its steps; arrays are [2], compute and memory.

    ``faces`` [F, 2] as in :attr:`CostModel.faces`;  constants_s of a step;  full_step_s, the work that takes a step at least
    """

    faces: NDArray[np.float64]
    constants_s: NDArray[np.float64]
    full_step_s: NDArray[np.float64]

    @classmethod
    def of(cls, cost: CostModel) -> _RankTime:
        full_step_s = [cost.gemm_token_s * REFERENCE_STEP_TOKENS, cost.kv_token_s * cost.kv_capacity_tokens]
        return cls(np.array(cost.faces), np.array([cost.gemm_fixed_s, cost.decode_fixed_s]), np.array(full_step_s))

    def seconds(self, load: NDArray[np.float64], longest: NDArray[np.float64]) -> NDArray[np.float64]:
        """[N] seconds of ranks with these loads [N, 2] and longest outputs [N]."""
        num_steps = np.maximum(longest, (load / self.full_step_s).max(axis=1))
        return ((load + num_steps[:, None] * self.constants_s) @ self.faces.T).max(axis=1)

    def of_outputs(self) -> tuple[float, float]:
        """(seconds a step, KV read seconds of a full step) of a rank that has long outputs only."""
        return float(self.faces[-1] @ self.constants_s), float(self.full_step_s[1])


def _least_limit_s(memory_s: NDArray[np.float64], longest: NDArray[np.float64], num_shards: int, rank_time: _RankTime) -> float:
    """The least limit on a rank's seconds under which all pieces [K] find a place; they are sorted by length."""
    if len(memory_s) == 0:
        return 0.0
    step_s, full_step_s = rank_time.of_outputs()
    low, high = 0.0, memory_s.sum() * (1 + step_s / full_step_s) + step_s * longest[0]
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        if (_fill(memory_s, longest, num_shards, middle, rank_time) == UNDEALT).any():
            low = middle
        else:
            high = middle
    return float(high)


def _fill(
    memory_s: NDArray[np.float64], longest: NDArray[np.float64], num_shards: int, limit_s: float, rank_time: _RankTime
) -> NDArray[np.int64]:
    """[K] shard of each piece: one shard after another takes what fits into ``limit_s``, the longest first."""
    step_s, full_step_s = rank_time.of_outputs()
    shard = np.full(len(memory_s), UNDEALT, np.int64)
    waiting = list(zip(range(len(memory_s)), memory_s.tolist(), longest.tolist(), strict=True))
    for rank in range(num_shards):
        held_s, num_steps, left = 0.0, 0.0, []
        for piece in waiting:
            held_with_s, steps_with = held_s + piece[1], max(num_steps, piece[2])
            if held_with_s + step_s * max(steps_with, held_with_s / full_step_s) <= limit_s:
                shard[piece[0]], held_s, num_steps = rank, held_with_s, steps_with
            else:
                left.append(piece)
        waiting = left
    return shard


def _deal_rest(
    shard: NDArray[np.int64], rest: NDArray[np.int64], pieces: Pieces, num_shards: int, rank_time: _RankTime
) -> float:
    """Give each of the ``rest`` to the shard that is done first with it; returns when the last shard is done."""
    load, longest = np.zeros((num_shards, 2)), np.zeros(num_shards)
    dealt = np.flatnonzero(shard != UNDEALT)
    np.add.at(load, shard[dealt], pieces.seconds[dealt])
    np.maximum.at(longest, shard[dealt], pieces.longest[dealt])
    for piece in rest:
        done_s = rank_time.seconds(load + pieces.seconds[piece], np.maximum(longest, pieces.longest[piece]))
        shard[piece] = rank = int(np.argmin(done_s))
        load[rank] += pieces.seconds[piece]
        longest[rank] = max(longest[rank], pieces.longest[piece])
    return float(rank_time.seconds(load, longest).max())
