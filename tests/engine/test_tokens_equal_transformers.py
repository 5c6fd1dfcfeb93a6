"""Greedy token ids of 64 real prompts, served together in float32, equal transformers' generate, one prompt at a time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from real_prompts import PROMPTS, greedy_table, shortest_prompts
from serving import make_scheduler, outputs_of

from blendserve_core.engine.load import load_cpu_executor
from blendserve_core.engine.model.folder import resolve_model
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.scheduler import Scheduler
from blendserve_core.text.tokenizer import PromptTokenizer
from schemas.parameters import EngineOptions

# Family, number of prompts, output tokens of each: short ones of opposite demand, with and without a shared prefix.
# benchmarks/equality.py takes 200 of all families, the long ones too.
FAMILIES = (("mixed_instructions", 36, 16), ("mmlu_raw", 10, 8), ("mmlu_5shot", 16, 2), ("gsm8k_8shot", 2, 4))


@dataclass(frozen=True)
class Job:
    model_folder: Path
    requests: RequestTable
    eos_token_ids: tuple[int, ...]
    expected: list[list[int]]

    def serve(self, options: EngineOptions, order: NDArray[np.int64] | None = None) -> tuple[list[list[int]], Scheduler]:
        """Output token ids of every request, in table order, and the scheduler that ran them."""
        executor = load_cpu_executor(self.model_folder, self.requests, "float32", options)
        scheduler = make_scheduler(
            executor,
            self.requests,
            order=order,
            prefix_sharing=options.prefix_sharing,
            eos_token_ids=self.eos_token_ids,
        )
        outputs = outputs_of(scheduler, executor)
        return [outputs[request] for request in range(self.requests.num_requests)], scheduler


@pytest.fixture(scope="module")
def job() -> Job:
    if not PROMPTS.is_dir():
        pytest.skip(f"{PROMPTS} is not there")
    folder = resolve_model("demo")
    tokenizer = PromptTokenizer.load(folder)
    prompts = [prompt for family, number, _ in FAMILIES for prompt in shortest_prompts(tokenizer, family, number)]
    max_tokens = [limit for _, number, limit in FAMILIES for _ in range(number)]
    requests = greedy_table(prompts, max_tokens)
    return Job(folder, requests, tokenizer.eos_token_ids, _generate_one_by_one(folder, requests))


@torch.inference_mode()
def _generate_one_by_one(folder: Path, requests: RequestTable) -> list[list[int]]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    outputs = []
    for request, limit in enumerate(requests.sampling.max_tokens.tolist()):
        prompt = torch.tensor(requests.prompt(request))[None]
        generated = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=limit)
        outputs.append(generated[0, prompt.shape[1] :].tolist())
    return outputs


@pytest.mark.parametrize("sharing", [True, False], ids=["sharing", "no-sharing"])
def test_a_large_budget_gives_the_reference_tokens(job: Job, sharing: bool) -> None:
    outputs, _ = job.serve(EngineOptions(max_step_tokens=2048, prefix_sharing=sharing))
    assert outputs == job.expected


def test_the_torch_kernels_give_the_reference_tokens(job: Job) -> None:
    outputs, _ = job.serve(EngineOptions(max_step_tokens=2048, kernels="torch"))
    assert outputs == job.expected


def test_prompts_cut_into_small_chunks_give_the_reference_tokens(job: Job) -> None:
    outputs, _ = job.serve(EngineOptions(max_step_tokens=64))
    assert outputs == job.expected


def test_a_shuffled_order_gives_the_reference_tokens(job: Job) -> None:
    order = np.random.default_rng(0).permutation(job.requests.num_requests)
    outputs, _ = job.serve(EngineOptions(max_step_tokens=512), order)
    assert outputs == job.expected


def test_retracted_requests_give_the_reference_tokens(job: Job) -> None:
    outputs, scheduler = job.serve(EngineOptions(max_step_tokens=512, kv_cache_tokens=1440))
    assert scheduler.counters.num_retractions > 0
    assert outputs == job.expected
