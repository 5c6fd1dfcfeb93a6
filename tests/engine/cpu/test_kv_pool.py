"""The torch KV pool: what is appended is gathered, and copies take only the slots asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from blendserve_core.engine.cpu.kv_pool import HUGE_PAGE_BYTES, KVPool, zeros_on_demand
from blendserve_core.engine.model.config import ModelConfig

CONFIG = ModelConfig.from_dict(
    {
        "model_type": "llama",
        "vocab_size": 10,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
    }
)
PAGE_SIZE = 4


@pytest.fixture(params=[torch.float32, torch.bfloat16])
def pool(request: pytest.FixtureRequest) -> KVPool:
    return KVPool(replace(CONFIG, num_kv_heads=1), num_pages=6, page_size=PAGE_SIZE, dtype=request.param)


def fill(pool: KVPool, layer: int, pages: list[int], offset: float) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = pool.gather(0, torch.tensor([[0]]))[0].dtype
    slots = (torch.tensor(pages)[:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE)).flatten()
    k = (torch.arange(len(slots) * 4).view(-1, 1, 4) % 50 + offset).to(dtype)
    pool.append(layer, slots, k, -k)
    return k, -k


def test_pages_are_gathered_in_the_order_asked_for(pool: KVPool) -> None:
    k, v = fill(pool, 1, [5, 2, 3], offset=1)
    keys, values = pool.gather(1, torch.tensor([[5, 2], [3, 5]]))
    assert torch.equal(keys, torch.stack([k[:8], torch.cat([k[8:], k[:4]])]))
    assert torch.equal(values, torch.stack([v[:8], torch.cat([v[8:], v[:4]])]))
    assert not pool.gather(0, torch.tensor([[5]]))[0].any()


def test_a_copy_takes_the_first_slots_in_every_layer_and_leaves_the_rest(pool: KVPool) -> None:
    for layer in range(2):
        fill(pool, layer, [0, 1, 2, 3], offset=layer)
    before = [pool.gather(layer, torch.tensor([[0, 1, 2, 3]])) for layer in range(2)]
    pages = [np.array(page, dtype=np.int32) for page in ([0, 1], [2, 3], [3, 1])]
    pool.copy_pages(*pages)
    for layer in range(2):
        for old, new in zip(before[layer], pool.gather(layer, torch.tensor([[0, 1, 2, 3]])), strict=True):
            expected = old.clone()
            expected[0, 8:11], expected[0, 12:13] = old[0, 0:3], old[0, 4:5]
            assert torch.equal(new, expected)


def test_zeros_on_demand_are_zeros_that_can_be_written() -> None:
    zeros = zeros_on_demand((3, 5), torch.bfloat16)
    assert zeros.shape == (3, 5)
    assert not zeros.any()
    zeros[1, 2] = 2.0
    assert zeros.sum() == 2.0


def test_zeros_on_demand_begin_with_a_huge_page() -> None:
    assert zeros_on_demand((3, 5), torch.float32).data_ptr() % HUGE_PAGE_BYTES == 0
