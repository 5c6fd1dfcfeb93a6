"""With ``batch_invariant`` a bfloat16 row has the same bits alone, among others, in chunks, behind a prefix and retracted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from real_prompts import greedy_table
from serving import make_scheduler

from blendserve_core.engine.cpu.invariant import InvariantOps, least_row_multiple, padded
from blendserve_core.engine.load import load_cpu_executor, make_ops
from blendserve_core.requests import RequestTable
from blendserve_core.run import run_steps
from schemas.parameters import EngineOptions

NUM_REQUESTS, NUM_OUTPUTS = 24, 20
INVARIANT = EngineOptions(batch_invariant=True, kernels="native", threads=1, kv_cache_tokens=8192)


@pytest.fixture(scope="module")
def requests() -> RequestTable:
    """Prompts of many lengths; every other one begins with the same 48 tokens."""
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 250, 48).tolist()
    prompts = [(shared if i % 2 else []) + rng.integers(0, 250, 3 + 5 * i).tolist() for i in range(NUM_REQUESTS)]
    return greedy_table(prompts, [NUM_OUTPUTS] * NUM_REQUESTS)


def logprobs_of(folder: Path, requests: RequestTable, options: EngineOptions) -> tuple[dict[int, list[tuple]], int]:
    """Every request's tokens with their exact log-probabilities, and the number of retractions."""
    requests.sampling.logprobs[:] = 0
    try:
        executor = load_cpu_executor(folder, requests, "bfloat16", options)
    except ValueError as error:
        pytest.skip(str(error))
    scheduler = make_scheduler(executor, requests, prefix_sharing=options.prefix_sharing)
    found: dict[int, list[tuple]] = {}
    for record in run_steps(scheduler, executor):
        if record.result.logprobs is not None:
            sampled = record.step.seq_ids[record.step.is_sampled].tolist()
            for row in zip(sampled, record.result.token_ids.tolist(), record.result.logprobs.chosen.tolist(), strict=True):
                found.setdefault(row[0], []).append(row[1:])
    return found, scheduler.counters.num_retractions


@pytest.fixture(scope="module")
def together(tiny_model_folder: Path, requests: RequestTable) -> dict[int, list[tuple]]:
    return logprobs_of(tiny_model_folder, requests, INVARIANT)[0]


@pytest.mark.parametrize(
    "changes",
    [{"max_sequences": 1}, {"prefix_sharing": False}, {"max_step_tokens": 32, "max_sequences": 24}, {"max_sequences": 5}],
    ids=str,
)
def test_rows_have_the_same_bits_however_they_are_batched(
    tiny_model_folder: Path, requests: RequestTable, together: dict[int, list[tuple]], changes: dict[str, object]
) -> None:
    found, _ = logprobs_of(tiny_model_folder, requests, INVARIANT.model_copy(update=changes))
    assert found == together


def test_retracted_rows_have_the_same_bits(
    tiny_model_folder: Path, requests: RequestTable, together: dict[int, list[tuple]]
) -> None:
    found, num_retractions = logprobs_of(tiny_model_folder, requests, INVARIANT.model_copy(update={"kv_cache_tokens": 256}))
    assert num_retractions > 0
    assert found == together


def test_a_library_that_sums_small_batches_in_another_order_is_given_larger_ones() -> None:
    def row_by_row(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([row @ torch.ones(24, 8) for row in x])

    def moody(x: torch.Tensor) -> torch.Tensor:
        return row_by_row(x) * (1.001 if len(x) < 4 else 1)

    assert least_row_multiple(row_by_row, 24, torch.float32) == 1
    assert least_row_multiple(moody, 24, torch.float32) == 4
    assert torch.equal(padded(moody, 4)(torch.ones(1, 24)), row_by_row(torch.ones(1, 24)))


def test_where_nothing_helps_it_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_invariant cannot be had here"):
        least_row_multiple(lambda x: x * len(x), 4, torch.float32)


def test_the_torch_kernels_do_not_promise_it() -> None:
    with pytest.raises(ValueError, match="batch_invariant needs the native kernels"):
        make_ops(None, batch_invariant=True)
    assert not isinstance(make_ops(None), InvariantOps)
