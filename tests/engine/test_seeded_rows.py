"""A sampled row's tokens come from its seed: not from the order of admission, its batch, or the shard that serves it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from real_prompts import greedy_table
from sampling_rows import assert_drawn_from
from serving import make_scheduler, outputs_of

from blendserve_core.engine.load import load_cpu_executor
from blendserve_core.engine.sampling import RowParameters, sample
from blendserve_core.requests import RequestTable, SamplingColumns
from schemas.parameters import EngineOptions

NUM_REQUESTS = 16
SAMPLED = {"temperature": 1.1, "top_p": 0.95, "min_p": 0.001, "repetition_penalty": 1.1}


def seeded(seed: int) -> RequestTable:
    rng = np.random.default_rng(0)
    prompts = [[7] * (20 * (i % 2)) + rng.integers(0, 250, 4 + 3 * i).tolist() for i in range(NUM_REQUESTS)]
    keys = np.arange(NUM_REQUESTS) + 1000 * seed
    table = greedy_table(prompts, [16] * NUM_REQUESTS)
    return replace(table, sampling=SamplingColumns.greedy(NUM_REQUESTS, 16, rng_key=keys, **SAMPLED))


def serve(folder: Path, requests: RequestTable, order: np.ndarray, **options: int) -> dict[int, list[int]]:
    executor = load_cpu_executor(folder, requests, "float32", EngineOptions(threads=1, **options))
    return outputs_of(make_scheduler(executor, requests, order=order), executor)


@pytest.fixture(scope="module")
def together(tiny_model_folder: Path) -> dict[int, list[int]]:
    return serve(tiny_model_folder, seeded(1), np.arange(NUM_REQUESTS))


@pytest.mark.parametrize("options", [{}, {"max_sequences": 3}, {"max_step_tokens": 24, "max_sequences": 16}], ids=str)
def test_any_order_and_batch_gives_the_same_tokens(
    tiny_model_folder: Path, together: dict[int, list[int]], options: dict[str, int]
) -> None:
    order = np.random.default_rng(3).permutation(NUM_REQUESTS)
    assert serve(tiny_model_folder, seeded(1), order, **options) == together


@pytest.mark.parametrize("num_shards", [2, 3])
def test_any_number_of_shards_gives_the_same_tokens(
    tiny_model_folder: Path, together: dict[int, list[int]], num_shards: int
) -> None:
    shards = [serve(tiny_model_folder, seeded(1), np.arange(rank, NUM_REQUESTS, num_shards)) for rank in range(num_shards)]
    assert {request: tokens for shard in shards for request, tokens in shard.items()} == together


def test_a_rows_draws_are_independent_of_each_other() -> None:
    num_draws, weights = 4000, np.array([0.5, 0.3, 0.15, 0.05])
    columns = SamplingColumns.greedy(1, num_draws, temperature=1.0)
    first_row = np.zeros(num_draws, dtype=np.int64)
    parameters = RowParameters.of_sequences(columns, first_row, np.arange(num_draws, dtype=np.int32), len(weights))
    token_ids = sample(torch.from_numpy(np.log(weights)).float().expand(num_draws, -1), parameters)
    assert_drawn_from(token_ids, weights)
    pairs = 4 * token_ids[:-1] + token_ids[1:]
    assert_drawn_from(pairs, np.outer(weights, weights).ravel())


def test_another_seed_gives_other_tokens(tiny_model_folder: Path, together: dict[int, list[int]]) -> None:
    assert serve(tiny_model_folder, seeded(2), np.arange(NUM_REQUESTS)) != together
