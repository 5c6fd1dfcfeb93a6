"""The device's sampling against the host's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from flashinfer_stand_in import stand_in_kernels
from numpy.typing import NDArray

from blendserve_core.engine.cuda.sampling import DeviceSampler, needs_host
from blendserve_core.engine.sampling import RowParameters, sample
from blendserve_core.requests import SamplingColumns

NUM_ROWS, VOCAB_SIZE = 400, 300


def parameters(**values: float) -> RowParameters:
    rng = np.random.default_rng(3)
    defaults = {"temperature": 0.0, "top_p": 1.0, "min_p": 0.0} | values
    return RowParameters(
        temperature=np.full(NUM_ROWS, defaults["temperature"], np.float32),
        top_k=np.full(NUM_ROWS, int(values.get("top_k", 0)), np.int64),
        top_p=np.full(NUM_ROWS, defaults["top_p"], np.float32),
        min_p=np.full(NUM_ROWS, defaults["min_p"], np.float32),
        uniform=rng.random(NUM_ROWS),
    )


@pytest.fixture(scope="module")
def logits() -> torch.Tensor:
    return torch.randn(NUM_ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(2)) * 3


def on_device(logits: torch.Tensor, rows: RowParameters) -> NDArray[np.int32]:
    return DeviceSampler(stand_in_kernels()).sample(logits, rows).numpy()


@pytest.mark.parametrize("values", [{}, {"temperature": 0.7}, {"temperature": 1.3, "min_p": 0.2}], ids=str)
def test_without_truncation_the_device_draws_the_hosts_tokens(logits: torch.Tensor, values: dict[str, float]) -> None:
    rows = parameters(**values)
    assert on_device(logits, rows).tolist() == sample(logits, rows).tolist()


@pytest.mark.parametrize(
    "values", [{"top_k": 5}, {"top_p": 0.6}, {"top_k": 20, "top_p": 0.8}, {"top_k": 9, "top_p": 0.9, "min_p": 0.3}], ids=str
)
def test_truncation_keeps_the_tokens_that_the_host_keeps_at_its_rates(logits: torch.Tensor, values: dict[str, float]) -> None:
    same = logits[:1].expand(NUM_ROWS, -1)
    rows = parameters(temperature=1.0, **values)
    ours, theirs = on_device(same, rows), sample(same, rows)
    assert set(ours.tolist()) <= set(sample(same, replace(rows, uniform=np.linspace(0, 1, NUM_ROWS, endpoint=False))).tolist())
    shares = [np.bincount(tokens, minlength=VOCAB_SIZE) / NUM_ROWS for tokens in (ours, theirs)]
    assert np.abs(shares[0] - shares[1]).max() < 0.1


def test_greedy_and_drawn_rows_in_one_batch_do_not_disturb_each_other(logits: torch.Tensor) -> None:
    drawn, greedy = parameters(temperature=0.9), parameters()
    mixed = replace(drawn, temperature=np.where(np.arange(NUM_ROWS) % 2, drawn.temperature, greedy.temperature))
    expected = np.where(np.arange(NUM_ROWS) % 2, on_device(logits, drawn), on_device(logits, greedy))
    assert on_device(logits, mixed).tolist() == expected.tolist()


def test_only_rows_that_ask_for_what_the_host_knows_wait_for_it() -> None:
    sampling = SamplingColumns.greedy(4, 10, logprobs=np.array([-1, 3, -1, -1]), presence_penalty=np.array([0, 0, 0.5, 0]))
    assert needs_host(sampling).tolist() == [False, True, True, False]
