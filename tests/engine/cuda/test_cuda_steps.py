"""What a step reports and keeps beside its tokens: times of both resources, captured graphs, an 8-bit cache."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from attention_case import attention_config
from cuda_on_cpu import call_again, cuda_executor
from executor_contract import CAPACITY, float32_model_folder, requests_of  # noqa: F401
from halving import cut_in_half
from hand_scheduler import HandScheduler
from random_lanes import RandomLanes

from blendserve_core.engine.cuda import graphs, step_runner
from blendserve_core.engine.cuda.kv_pool import FP8, DeviceKVPool
from blendserve_core.engine.cuda.program import Run
from blendserve_core.schedule.step import StepResult


def results_of(executor, num_steps: int) -> list[StepResult]:
    """A prompt, then decodes of three sequences."""
    scheduler = HandScheduler(requests_of(logprobs=-1), CAPACITY)
    scheduler.admit(0, 1, 2)
    first = scheduler.step(executor, s0=37, s1=5, s2=16)
    return [first, *(scheduler.step(executor, s0=1, s1=1, s2=1) for _ in range(num_steps - 1))]


def test_timed_steps_report_both_resources_and_others_neither(float32_model_folder: Path, monkeypatch) -> None:  # noqa: F811
    monkeypatch.setattr(step_runner, "TIMED_EVERY", 3)
    results = results_of(cuda_executor(float32_model_folder, requests_of(), CAPACITY), num_steps=5)
    assert [result.compute_s is not None for result in results] == [True, False, False, True, False]
    assert results[0].memory_s == 0.0, "a step of prompts has no decode attention"
    decode = results[3]
    assert decode.compute_s is not None
    assert decode.memory_s is not None
    assert 0 < decode.memory_s < decode.seconds
    assert 0 < decode.compute_s < decode.seconds


def test_a_row_count_is_captured_once_it_has_come_up_often_enough(float32_model_folder: Path, monkeypatch) -> None:  # noqa: F811
    monkeypatch.setattr(graphs, "MIN_OCCURRENCES", 2)
    captured = 0

    def capture(start):
        nonlocal captured
        captured += 1
        return call_again(start)

    executor = cuda_executor(float32_model_folder, requests_of(), CAPACITY, capture=capture, min_tokens_saved=10**9)
    results_of(executor, num_steps=2)
    assert captured == 0
    results_of(executor, num_steps=4)
    assert captured == 1


def test_both_nano_batches_of_a_cut_step_attend_on_their_own_lane(float32_model_folder: Path, monkeypatch) -> None:  # noqa: F811
    monkeypatch.setattr(step_runner, "choose_cut", cut_in_half)
    lanes = RandomLanes(random.Random(1))
    results_of(cuda_executor(float32_model_folder, requests_of(), CAPACITY, lanes=lanes), num_steps=2)
    names = [run.name for run in lanes.programs[1] if isinstance(run, Run)]
    assert {"decodes A 0", "decodes B 0", "decodes A 2", "decodes B 2"} <= set(names)


def test_an_8_bit_cache_gives_nearly_the_same_logits(float32_model_folder: Path) -> None:  # noqa: F811
    probabilities = []
    for kv_dtype in (torch.float32, FP8):
        executor = cuda_executor(float32_model_folder, requests_of(), CAPACITY, kv_dtype=kv_dtype)
        scheduler = HandScheduler(requests_of(), CAPACITY)
        scheduler.admit(0)
        result = scheduler.step(executor, s0=37)
        assert result.logprobs is not None
        probabilities.append(float(result.logprobs.chosen[0]))
    assert probabilities[0] != probabilities[1]
    assert probabilities[0] == pytest.approx(probabilities[1], abs=0.3)


def test_what_8_bits_cannot_hold_becomes_the_largest_number() -> None:
    pool = DeviceKVPool(attention_config(1, 64), 2, 16, FP8)
    assert pool.stored(torch.tensor([1e6, -1e6, 0.5])).float().tolist() == [448.0, -448.0, 0.5]
