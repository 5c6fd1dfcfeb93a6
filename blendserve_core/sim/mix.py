"""How many requests of each kind a mix needs for a wanted compute density and prefix sharing (paper appendix A.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blendserve_core.perf.cost import CostModel
from blendserve_core.sim.lengths import Lengths, LengthSource

PILOT_REQUESTS = 50_000
NUM_DRAWS = 64


@dataclass(frozen=True, slots=True)
class MixTarget:
    """``density`` is Tc / Tm of the whole mix, shared prefixes computed once; ``sharing`` the share of prompt tokens saved."""

    density: float
    sharing: float


PAPER_TRACES = {1: MixTarget(1.4, 0.35), 2: MixTarget(0.9, 0.35), 3: MixTarget(1.4, 0.05), 4: MixTarget(0.9, 0.05)}


@dataclass(frozen=True, slots=True)
class _PerRequest:
    """Means over a source's requests with cached prefixes, and what computing each prefix once adds to the whole."""

    num_prompt_tokens: float
    num_prefix_tokens: float
    compute_s: float
    memory_s: float
    prefix_tokens_once: float
    prefix_compute_s_once: float


def mix_counts(sources: list[LengthSource], target: MixTarget, num_requests: int, cost: CostModel) -> list[int]:
    """Requests of each of three sources (compute-heavy, high-sharing, long-output), ``num_requests`` in all.

    Three linear equations: the number of requests, the density, the sharing. Raises ValueError where they have no solution
    with counts of at least 0.
    """
    pilots = [_per_request(source(PILOT_REQUESTS, np.random.default_rng(0)), cost) for source in sources]
    equations = np.array(
        [
            [1.0 for _ in pilots],
            [p.compute_s - target.density * p.memory_s for p in pilots],
            [p.num_prefix_tokens - target.sharing * p.num_prompt_tokens for p in pilots],
        ]
    )
    once_s = sum(p.prefix_compute_s_once for p in pilots)
    once_tokens = sum(p.prefix_tokens_once for p in pilots)
    counts = np.linalg.solve(equations, [num_requests, -once_s, once_tokens])
    if counts.min() < -0.5:
        names = ", ".join(f"{count:.0f}" for count in counts)
        raise ValueError(
            f"no mix of {num_requests} requests has density {target.density} and sharing {target.sharing} "
            f"(it would need {names} of the three sources); move the target towards the sources' own, or ask for more requests"
        )
    rounded = np.maximum(np.rint(counts), 0).astype(int)
    rounded[np.argmax(rounded)] += num_requests - rounded.sum()
    return rounded.tolist()


def typical_draw(source: LengthSource, num_requests: int, cost: CostModel, rng: np.random.Generator) -> Lengths:
    """Of some draws of ``num_requests``, the one whose memory time is nearest to what so many requests take on average.

    A mix has few long outputs, and the longest of them bear most of its memory time: any one draw can be off by a third.
    """
    expected_s = _memory_s(source(PILOT_REQUESTS, np.random.default_rng(0)), cost) * num_requests / PILOT_REQUESTS
    draws = [source(num_requests, rng) for _ in range(NUM_DRAWS)]
    return min(draws, key=lambda lengths: abs(_memory_s(lengths, cost) - expected_s))


def _memory_s(lengths: Lengths, cost: CostModel) -> float:
    return float(cost.memory_s(lengths.num_prompt_tokens, lengths.num_output_tokens).sum())


def _per_request(lengths: Lengths, cost: CostModel) -> _PerRequest:
    prefixes = _distinct_prefixes(lengths)
    prompts, outputs = lengths.num_prompt_tokens, lengths.num_output_tokens
    return _PerRequest(
        num_prompt_tokens=float(prompts.mean()),
        num_prefix_tokens=float(lengths.num_prefix_tokens.mean()),
        compute_s=float(cost.compute_s(prompts, outputs, lengths.num_prefix_tokens).mean()),
        memory_s=float(cost.memory_s(prompts, outputs).mean()),
        prefix_tokens_once=float(prefixes.sum()) + lengths.num_system_tokens,
        prefix_compute_s_once=float(np.sum(cost.compute_s(prefixes + lengths.num_system_tokens, 0, lengths.num_system_tokens))),
    )


def _distinct_prefixes(lengths: Lengths) -> np.ndarray:
    """Tokens of each group's longest prefix beyond the system prompt."""
    has_group = lengths.prefix_group >= 0
    longest = np.zeros(lengths.prefix_group.max(initial=-1) + 1, np.int64)
    np.maximum.at(longest, lengths.prefix_group[has_group], lengths.num_prefix_tokens[has_group])
    return np.maximum(longest - lengths.num_system_tokens, 0)
