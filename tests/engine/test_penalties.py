"""Penalties against a naive twin, and the history they are computed from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from real_prompts import greedy_table
from sampling_rows import assert_drawn_from, exact_distribution, row_parameters

from blendserve_core.engine.penalties import Penalties
from blendserve_core.engine.sampling import sample
from blendserve_core.requests import RequestTable, SamplingColumns
from blendserve_core.schedule.step import StepPlan

PROMPTS = [[1, 2, 2, 3], [4, 4], [5, 6, 7]]
VOCAB_SIZE = 12


def requests_with(**columns: Any) -> RequestTable:
    requests = greedy_table(PROMPTS, [16] * len(PROMPTS))
    return replace(requests, sampling=SamplingColumns.greedy(len(PROMPTS), 16, **columns))


def feed(sequence: int, context_len: int, tokens: list[int], finished: list[int] | None = None) -> StepPlan:
    """A step with the given new tokens of one sequence; penalties look at nothing else."""
    none = np.empty(0, dtype=np.int32)
    return StepPlan(
        seq_ids=np.array([sequence]),
        token_indptr=np.array([0, len(tokens)], dtype=np.int32),
        token_ids=np.array(tokens, dtype=np.int32),
        context_lens=np.array([context_len], dtype=np.int32),
        page_indptr=np.zeros(2, dtype=np.int32),
        page_indices=none,
        last_page_lens=none,
        is_sampled=np.array([True]),
        num_outputs=none,
        prefix_nodes=none,
        prefix_lens=none,
        finished_seq_ids=np.array(finished or [], dtype=np.int64),
        copy_src_pages=none,
        copy_dst_pages=none,
        copy_lens=none,
    )


def naive(logits: list[float], prompt: list[int], outputs: list[int], r: float, p: float, f: float) -> list[float]:
    penalised = list(logits)
    for token in set(prompt + outputs):
        penalised[token] = penalised[token] / r if penalised[token] > 0 else penalised[token] * r
    for token in set(outputs):
        penalised[token] -= p + f * outputs.count(token)
    return penalised


@pytest.mark.parametrize(("r", "p", "f"), [(1.5, 0.0, 0.0), (1.0, 0.7, 0.0), (1.0, 0.0, -0.3), (0.8, 0.5, 0.25)])
def test_logits_equal_those_of_the_naive_twin(r: float, p: float, f: float) -> None:
    penalties = Penalties(requests_with(repetition_penalty=r, presence_penalty=p, frequency_penalty=f))
    penalties.follow(feed(0, 0, PROMPTS[0]))
    for position, token in enumerate([9, 2, 9], start=4):
        penalties.follow(feed(0, position, [token]))
    logits = torch.randn(1, VOCAB_SIZE)
    found = penalties.apply(logits, np.array([0]))
    np.testing.assert_allclose(found[0], naive(logits[0].tolist(), PROMPTS[0], [9, 2, 9], r, p, f), rtol=1e-5)


def test_rows_that_ask_for_nothing_are_left_as_they_are() -> None:
    penalties = Penalties(requests_with(presence_penalty=np.array([0.0, 1.0, 0.0])))
    for sequence, prompt in enumerate(PROMPTS):
        penalties.follow(feed(sequence, 0, [*prompt, 8]))
    logits = torch.randn(3, VOCAB_SIZE)
    changed = (penalties.apply(logits, np.array([2, 1, 0])) != logits).nonzero().tolist()
    assert changed == [[1, 8]]
    assert penalties.apply(logits, np.array([0, 2, 0])) is logits


def test_chunks_that_cross_the_end_of_the_prompt_give_the_outputs_alone() -> None:
    penalties = Penalties(requests_with(frequency_penalty=1.0))
    penalties.follow(feed(0, 0, PROMPTS[0][:2]))
    penalties.follow(feed(0, 2, [*PROMPTS[0][2:], 9, 9]))
    assert penalties.apply(torch.zeros(1, VOCAB_SIZE), np.array([0]))[0].nonzero().tolist() == [[9]]
    assert penalties.apply(torch.zeros(1, VOCAB_SIZE), np.array([0]))[0, 9] == -2


@pytest.mark.parametrize("is_told", [True, False], ids=["told to drop", "not told"])
def test_a_recomputed_sequence_counts_its_outputs_once(is_told: bool) -> None:
    penalties = Penalties(requests_with(frequency_penalty=1.0))
    penalties.follow(feed(1, 0, [*PROMPTS[1], 9, 10]))
    penalties.follow(feed(1, 0, [*PROMPTS[1], 9], finished=[1] if is_told else []))
    penalties.follow(feed(1, 3, [10, 10]))
    assert penalties.apply(torch.zeros(1, VOCAB_SIZE), np.array([1]))[0, [9, 10]].tolist() == [-1, -2]


def test_draws_follow_the_softmax_of_the_penalised_logits() -> None:
    num_draws, r, p, f = 4000, 1.3, 0.4, 0.2
    penalties = Penalties(requests_with(repetition_penalty=r, presence_penalty=p, frequency_penalty=f, temperature=1.0))
    penalties.follow(feed(0, 0, [*PROMPTS[0], 9, 2, 9]))
    logits = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(2))
    penalised = penalties.apply(logits.expand(num_draws, -1), np.zeros(num_draws, dtype=np.int64))
    expected = np.array(naive(logits.tolist(), PROMPTS[0], [9, 2, 9], r, p, f))
    token_ids = sample(penalised, row_parameters(num_draws))
    assert_drawn_from(token_ids, exact_distribution(expected))
    with pytest.raises(AssertionError):
        assert_drawn_from(token_ids, exact_distribution(logits.double().numpy()))
