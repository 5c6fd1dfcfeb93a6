"""How an engine is sized: by options first, else by what the requests can use and what memory there is."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch
from real_prompts import greedy_table

from blendserve_core.engine.load import PAGE_SIZE, free_memory_bytes, load_cpu_executor, plan_capacity
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.perf.step_budget import StepBudget
from blendserve_core.schedule.step import Capacity
from schemas.parameters import EngineOptions

CONFIG = ModelConfig.from_dict(
    {
        "model_type": "llama",
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
    }
)
# Keys and values of 64 numbers in 2 layers.
PAGE_BYTES = 2 * 2 * 64 * 2 * PAGE_SIZE
PLENTY = 2**34


def capacity_for(num_requests: int, options: EngineOptions | None = None, available_bytes: int = PLENTY) -> Capacity:
    requests = greedy_table([[1] * 100] * num_requests, [60] * num_requests)
    return plan_capacity(CONFIG, requests, torch.bfloat16, options or EngineOptions(), available_bytes, StepBudget())


def test_few_requests_get_no_more_pages_than_they_can_fill() -> None:
    assert 2 * 160 <= capacity_for(2).num_tokens <= 2 * (160 + 100) + 4 * PAGE_SIZE


def test_a_request_is_never_counted_beyond_the_models_context() -> None:
    requests = greedy_table([[1] * 100], [1_000_000])
    capacity = plan_capacity(CONFIG, requests, torch.bfloat16, EngineOptions(), PLENTY, StepBudget())
    assert 512 <= capacity.num_tokens <= 512 + 100 + 3 * PAGE_SIZE


def test_the_pool_leaves_half_of_the_memory_free() -> None:
    assert capacity_for(1000, available_bytes=100 * PAGE_BYTES).num_pages == 50


@pytest.mark.parametrize("limit", ["max\n", f"{2**62}\n"])
def test_a_container_without_a_tighter_limit_may_use_the_machine(limit: str, tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(limit)
    assert free_memory_bytes(tmp_path / "memory.max") > 2**20


def test_a_containers_limit_counts_what_this_process_holds_already(tmp_path: Path) -> None:
    held = psutil.Process().memory_info().rss
    (tmp_path / "memory.max").write_text(f"{held + 2**20}\n")
    assert free_memory_bytes(tmp_path / "memory.max") < 2**21


def test_no_room_for_a_single_page_is_refused() -> None:
    with pytest.raises(ValueError, match="too little for one page"):
        capacity_for(1, available_bytes=PAGE_BYTES)


def test_options_come_before_what_the_machine_suggests() -> None:
    options = EngineOptions(max_step_tokens=64, max_sequences=7, kv_cache_tokens=1000)
    assert capacity_for(50, options) == Capacity(
        num_pages=62, page_size=16, max_step_tokens=64, max_sequences=7, max_sequence_tokens=512
    )


def test_a_step_has_room_for_a_token_of_every_sequence() -> None:
    capacity = capacity_for(3000, EngineOptions(max_sequences=2000))
    assert capacity.max_step_tokens >= capacity.max_sequences == 2000


def test_a_model_folder_becomes_an_executor(tiny_model_folder: Path) -> None:
    requests = greedy_table([[1, 2, 3]], [4])
    executor = load_cpu_executor(tiny_model_folder, requests, "bfloat16", EngineOptions())
    assert executor.capacity.max_sequence_tokens == 256
    executor.close()
