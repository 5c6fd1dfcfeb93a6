"""Workloads to simulate: random token ids with real shared prefixes, and each request's true output length."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numba
import numpy as np
from numpy.typing import NDArray

from blendserve_core.perf.cost import CostModel
from blendserve_core.requests import RequestTable, SamplingColumns
from blendserve_core.sim.lengths import Lengths, LengthSource, burst_like, evenly, mmlu_like, openvid_like, resample
from blendserve_core.sim.mix import MixTarget, mix_counts, typical_draw
from blendserve_core.sim.request_file import has_prompts, read_lengths, read_prompts

VOCAB_SIZE = 2**31 - 1
"""So many that prompts share by chance nothing beyond their prefixes; a simulation embeds none of them."""
EOS_TOKEN_ID = 2
MAX_TOKENS = 131_072


@dataclass(frozen=True, slots=True)
class Workload:
    """``requests`` is all that a planner or policy may see; ``true_output_tokens`` [R] int32 is for the executor alone."""

    requests: RequestTable
    true_output_tokens: NDArray[np.int32]

    def for_model(self, vocab_size: int) -> Workload:
        """The same with token ids that a real model can embed; what is shared stays shared."""
        first = EOS_TOKEN_ID + 1
        token_ids = first + (self.requests.token_ids - first) % (vocab_size - first)
        return replace(self, requests=replace(self.requests, token_ids=token_ids.astype(np.int32)))


def mixed_workload(
    target: MixTarget,
    num_requests: int,
    cost: CostModel,
    seed: int,
    *,
    compute_heavy: LengthSource = burst_like,
    high_sharing: LengthSource = mmlu_like,
    long_output: LengthSource = openvid_like,
    max_tokens: int = MAX_TOKENS,
) -> Workload:
    """A mix of three traces in random order, as dense and as shared as ``target`` under ``cost`` (paper appendix A.3).

    All requests have the limit ``max_tokens``, which should be as generous to a smaller mix's shorter outputs.
    """
    sources = [compute_heavy, high_sharing, long_output]
    rng = np.random.default_rng(seed)
    num_compute, num_sharing, num_long = mix_counts(sources, target, num_requests, cost)
    long_outputs = typical_draw(long_output, num_long, cost, rng)
    return synthesize([compute_heavy(num_compute, rng), high_sharing(num_sharing, rng), long_outputs], rng, max_tokens)


def read_workload(path: Path, num_requests: int | None, seed: int) -> Workload:
    """A workload from Parquet: ``prompt_token_ids``, or lengths as :func:`read_lengths` has them; and ``output_tokens``.

    ``num_requests`` draws so many rows at random, repeating rows where the file has fewer; None takes the file as it is.
    """
    rng = np.random.default_rng(seed)
    if not has_prompts(path):
        lengths = read_lengths(path)
        return synthesize([lengths if num_requests is None else resample(lengths, num_requests, rng)], rng)
    prompts, outputs = read_prompts(path)
    rows = np.arange(len(outputs)) if num_requests is None else evenly(len(outputs), num_requests, rng)
    lens = np.array([len(prompts[row]) for row in rows], np.int32)
    return Workload(_request_table(lens, np.concatenate([prompts[row] for row in rows])), outputs[rows])


def synthesize(parts: list[Lengths], rng: np.random.Generator, max_tokens: int = MAX_TOKENS) -> Workload:
    """Requests with these lengths, shuffled; each part has a system prompt of its own, and tokens are random otherwise."""
    prefixes = _Prefixes.draw(parts, rng)
    order = rng.permutation(sum(len(part) for part in parts))
    lens = np.concatenate([part.num_prompt_tokens for part in parts])[order]
    outputs = np.minimum(np.concatenate([part.num_output_tokens for part in parts])[order], max_tokens)
    token_ids = rng.integers(EOS_TOKEN_ID + 1, VOCAB_SIZE, int(lens.sum(dtype=np.int64)), dtype=np.int32)
    requests = _request_table(lens, token_ids, max_tokens)
    _write_prefixes(token_ids, requests.prompt_start, prefixes.token_ids, prefixes.start[order], prefixes.num_tokens[order])
    return Workload(requests, outputs.astype(np.int32))


@dataclass(frozen=True, slots=True)
class _Prefixes:
    """Token ids of all shared prefixes, and where each request's prefix starts in them."""

    token_ids: NDArray[np.int32]
    start: NDArray[np.int64]
    num_tokens: NDArray[np.int32]

    @classmethod
    def draw(cls, parts: list[Lengths], rng: np.random.Generator) -> _Prefixes:
        # One row per group and a last one for requests without a group, all as wide as the part's longest prefix.
        rows = [_prefix_rows(part, rng) for part in parts]
        first = np.cumsum([0, *(row.size for row in rows)])[:-1]
        start = [
            base + (part.prefix_group % len(row)).astype(np.int64) * row.shape[1]
            for base, part, row in zip(first, parts, rows, strict=True)
        ]
        num_tokens = np.concatenate([part.num_prefix_tokens for part in parts])
        return cls(np.concatenate([row.ravel() for row in rows]), np.concatenate(start), num_tokens)


def _prefix_rows(part: Lengths, rng: np.random.Generator) -> NDArray[np.int32]:
    num_rows = int(part.prefix_group.max(initial=-1)) + 2
    width = max(int(part.num_prefix_tokens.max(initial=0)), part.num_system_tokens, 1)
    rows = rng.integers(EOS_TOKEN_ID + 1, VOCAB_SIZE, (num_rows, width), dtype=np.int32)
    rows[:, : part.num_system_tokens] = rows[0, : part.num_system_tokens]
    return rows


@numba.njit(cache=True)
def _write_prefixes(token_ids, prompt_start, prefix_token_ids, prefix_start, num_prefix_tokens):
    for i in range(len(prompt_start)):
        for j in range(num_prefix_tokens[i]):
            token_ids[prompt_start[i] + j] = prefix_token_ids[prefix_start[i] + j]


def _request_table(
    num_prompt_tokens: NDArray[np.int32], token_ids: NDArray[np.int32], max_tokens: int = MAX_TOKENS
) -> RequestTable:
    num_requests = len(num_prompt_tokens)
    start = np.zeros(num_requests, np.int64)
    np.cumsum(num_prompt_tokens[:-1], out=start[1:])
    return RequestTable(
        row=np.arange(num_requests),
        sample_index=np.zeros(num_requests, np.int32),
        prompt_start=start,
        num_prompt_tokens=num_prompt_tokens.astype(np.int32),
        token_ids=token_ids,
        # One generous limit for all says nothing about any request's true length.
        sampling=SamplingColumns.greedy(num_requests, max_tokens),
    )
