"""A tensor-parallel group of processes over gloo: the tokens of one rank, and what happens when a rank dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from executor_contract import CAPACITY, float32_model_folder, requests_of  # noqa: F401
from flashinfer_stand_in import stand_in_kernels
from hand_scheduler import HandScheduler

from blendserve_core.engine.cuda.executor import CudaExecutor
from blendserve_core.engine.cuda.load import load_cuda_executor
from blendserve_core.engine.parallel.ranks import RankLostError, RankProcesses
from schemas.parameters import EngineOptions

OPTIONS = EngineOptions(kv_cache_tokens=CAPACITY.num_tokens, max_sequences=16, max_step_tokens=512)


def executor_of(folder: Path, size: int) -> CudaExecutor:
    options = OPTIONS.model_copy(update={"tensor_parallel": size})
    return load_cuda_executor(folder, requests_of(logprobs=-1), "float32", options, kernels=stand_in_kernels, is_on_gpu=False)


def greedy_tokens(executor: CudaExecutor, num_outputs: int) -> list[list[int]]:
    scheduler = HandScheduler(requests_of(logprobs=-1), executor.capacity)
    scheduler.admit(0, 3, 4, 5)
    scheduler.prefill_and_decode(executor, num_outputs)
    return [scheduler.outputs(sequence) for sequence in (0, 3, 4, 5)]


def test_two_ranks_give_the_tokens_of_one_and_end_with_an_error_when_one_dies(float32_model_folder: Path) -> None:  # noqa: F811
    whole = executor_of(float32_model_folder, 1)
    expected = greedy_tokens(whole, num_outputs=8)
    whole.close()
    group = executor_of(float32_model_folder, 2)
    try:
        assert greedy_tokens(group, num_outputs=8) == expected
        assert isinstance(group._followers, RankProcesses)
        os.kill(group._followers.pids[0], signal.SIGKILL)
        with pytest.raises(RankLostError, match=r"rank 1 of tensor-parallel group 0, of 2 ranks, has died \(killed by SIGKILL"):
            greedy_tokens(group, num_outputs=8)
    finally:
        group.close()
