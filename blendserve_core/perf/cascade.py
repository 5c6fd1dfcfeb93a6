"""What it costs to read a prefix that rows of a step share in a pass of its own, and merge (cascade attention)."""

from __future__ import annotations

import math
from dataclasses import dataclass

Saving = tuple[int, int, float]
"""(rows, tokens of the prefix they share, seconds by which a layer's attention is faster when it is read once)."""

# No timing noise makes sharing look free, or out of the question.
MERGE_TOKENS_BOUNDS = (1.0, 5_000.0)
CALL_TOKENS_BOUNDS = (100.0, 100_000.0)


@dataclass(frozen=True, slots=True)
class CascadeCosts:
    """In tokens of KV that one more pass reads in the same time, for one layer. The defaults are from a 2-core AVX-512 machine.

    merge_tokens  a second state of one row: its output in float32, and the merge
    call_tokens   the two more calls
    """

    merge_tokens: float = 800.0
    call_tokens: float = 14_000.0

    def pays(self, num_saved_tokens: int, num_rows: int) -> bool:
        """Whether a step of so many rows is faster where sharing saves it the reading of so many tokens."""
        return num_saved_tokens > self.call_tokens + self.merge_tokens * num_rows

    @classmethod
    def from_savings(cls, many_long: Saving, many_short: Saving, few_short: Saving) -> CascadeCosts:
        """Solve ``saved = (rows - 1) * tokens * read_s - rows * merge_s - call_s`` for its three unknowns.

        Many rows share a long and a short prefix, few rows the same short one.
        """
        (many, long, many_long_s), (_, short, many_short_s), (few, _, few_short_s) = many_long, many_short, few_short
        read_s = (many_long_s - many_short_s) / ((many - 1) * (long - short))
        if read_s <= 0:  # a pass costs nothing that could be spared
            return cls(MERGE_TOKENS_BOUNDS[1], CALL_TOKENS_BOUNDS[1])
        merge_s = short * read_s - (many_short_s - few_short_s) / (many - few)
        call_s = (few - 1) * short * read_s - few * merge_s - few_short_s
        return cls(_within(merge_s / read_s, MERGE_TOKENS_BOUNDS), _within(call_s / read_s, CALL_TOKENS_BOUNDS))


def sound_costs(content: object) -> CascadeCosts | None:
    """Costs as they were kept in JSON; None for what is none."""
    try:
        costs = CascadeCosts(**content)  # pyright: ignore[reportCallIssue]
        is_sound = all(0 < value < math.inf for value in (costs.merge_tokens, costs.call_tokens))
    except TypeError:
        return None
    return costs if is_sound else None


def _within(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])
