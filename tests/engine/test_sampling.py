"""Draws follow the exact softmax under every option, and depend on nothing outside their row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sampling_rows import assert_drawn_from, exact_distribution, row_parameters

from blendserve_core.engine import sampling
from blendserve_core.engine.sampling import RowParameters, logprobs_of, sample

NUM_DRAWS = 20_000
OPTIONS = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.0},
    {"top_k": 5},
    {"top_k": 100},
    {"top_p": 0.7},
    {"top_p": 0.999},
    {"min_p": 0.1},
    {"top_k": 12, "top_p": 0.8},
    {"temperature": 1.5, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
]


def logits_row(vocab_size: int = 300) -> torch.Tensor:
    return torch.randn(vocab_size, generator=torch.Generator().manual_seed(1)) * 2


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_draws_follow_the_exact_softmax(options: dict[str, float]) -> None:
    row = logits_row()
    token_ids = sample(row.expand(NUM_DRAWS, -1), row_parameters(NUM_DRAWS, **options))
    assert_drawn_from(token_ids, exact_distribution(row.double().numpy(), **options))


def test_the_chi_square_test_notices_a_wrong_temperature() -> None:
    row = logits_row()
    token_ids = sample(row.expand(NUM_DRAWS, -1), row_parameters(NUM_DRAWS, temperature=1.1))
    with pytest.raises(AssertionError):
        assert_drawn_from(token_ids, exact_distribution(row.double().numpy()))


@pytest.mark.parametrize("top_p", [0.5, 0.95, 0.9999])
def test_top_p_is_exact_where_it_reaches_past_the_candidates(top_p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    row = logits_row()
    parameters = row_parameters(500, top_p=top_p)
    monkeypatch.setattr(sampling, "CANDIDATE_WIDTHS", (300,))
    from_all = sample(row.expand(500, -1), parameters)
    monkeypatch.setattr(sampling, "CANDIDATE_WIDTHS", (4, 32))
    assert sample(row.expand(500, -1), parameters).tolist() == from_all.tolist()


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 5.0, 5.0, 5.0]])
    assert sample(logits, row_parameters(2, temperature=0.0)).tolist() == [1, 0]


def test_a_temperature_next_to_zero_is_greedy() -> None:
    logits = torch.randn(5, 40) * 30
    assert sample(logits, row_parameters(5, temperature=1e-30)).tolist() == logits.argmax(-1).tolist()


def test_a_row_is_drawn_alike_alone_and_among_others() -> None:
    logits = torch.randn(len(OPTIONS) * 3, 2000) * 2
    mixed = [row_parameters(len(logits), **options) for options in [*OPTIONS, {"temperature": 0.0}]]
    which = np.arange(len(logits)) % len(mixed)
    fields = (np.stack([getattr(p, name) for p in mixed])[which, np.arange(len(logits))] for name in RowParameters.__slots__)
    parameters = RowParameters(*fields)
    together = sample(logits, parameters)
    alone = [sample(logits[i : i + 1], parameters.rows(np.array([i])))[0] for i in range(len(logits))]
    backwards = sample(logits.flip(0), parameters.rows(np.arange(len(logits))[::-1].copy()))[::-1]
    assert together.tolist() == alone == backwards.tolist()


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-53])
@pytest.mark.parametrize("vocab_size", [1, 255, 256, 257, 1000])
def test_the_ends_of_the_unit_interval_give_possible_tokens(uniform: float, vocab_size: int) -> None:
    logits = torch.full((1, vocab_size), -torch.inf)
    logits[0, vocab_size // 2 :: 7] = torch.randn(len(range(vocab_size // 2, vocab_size, 7)))
    parameters = row_parameters(1)
    parameters.uniform[:] = uniform
    possible = torch.isfinite(logits[0]).nonzero().flatten()
    assert sample(logits, parameters)[0] == possible[0 if uniform == 0.0 else -1]


def test_logprobs_are_the_log_softmax_of_the_raw_logits() -> None:
    logits = torch.randn(3, 50)
    found = logprobs_of(logits, np.array([7, 8, 9], dtype=np.int32), np.array([2, -1, 4], dtype=np.int32))
    assert found is not None
    expected = logits.log_softmax(-1)
    np.testing.assert_allclose(found.chosen, [expected[0, 7], np.nan, expected[2, 9]], rtol=1e-6)
    top, top_ids = expected.topk(4)
    assert found.top_token_ids.tolist() == [[*top_ids[0, :2].tolist(), -1, -1], [-1] * 4, top_ids[2].tolist()]
    np.testing.assert_allclose(found.top[2], top[2], rtol=1e-6)
    assert np.isnan(found.top[0, 2:]).all()


def test_logprobs_without_alternatives_hold_the_chosen_token_only() -> None:
    found = logprobs_of(torch.zeros(1, 4), np.array([2], dtype=np.int32), np.array([0], dtype=np.int32))
    assert found is not None
    np.testing.assert_allclose(found.chosen, [-np.log(4)], rtol=1e-6)
    assert found.top.shape == (1, 0)


def test_nothing_is_computed_where_no_row_asks_for_logprobs() -> None:
    assert logprobs_of(torch.zeros(2, 4), np.zeros(2, dtype=np.int32), np.array([-1, -1], dtype=np.int32)) is None
