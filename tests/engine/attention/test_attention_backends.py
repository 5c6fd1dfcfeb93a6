"""The same properties of every attention over paged KV: rotation, append and attention against dense attention in float64."""

from __future__ import annotations

import numpy as np
import pytest
from attention_backends import BACKENDS, MakeAttention, share_always
from attention_case import AttentionCase, attention_config

SHAPES = [(ratio, head_dim) for ratio in (1, 4, 7, 8) for head_dim in (64, 128)]


@pytest.fixture(params=BACKENDS.values(), ids=BACKENDS.keys())
def make_attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MakeAttention:
    share_always(monkeypatch)
    return request.param


@pytest.fixture(params=[1, 16], ids=lambda size: f"pages of {size}")
def page_size(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(params=SHAPES, ids=lambda shape: f"ratio {shape[0]}, head_dim {shape[1]}")
def case(request: pytest.FixtureRequest, make_attention: MakeAttention, page_size: int) -> AttentionCase:
    config = attention_config(*request.param)
    return AttentionCase(make_attention(config, page_size), config, page_size, seed=1)


def test_prompts_of_ragged_lengths_then_decodes(case: AttentionCase) -> None:
    case.step({0: 1, 1: 2, 2: 15, 3: 16, 4: 17, 5: 40})
    for _ in range(3):
        case.step(dict.fromkeys(range(6), 1))


def test_a_prompt_in_chunks_beside_decodes(case: AttentionCase) -> None:
    case.step({0: 30, 1: 7})
    case.step({0: 21, 1: 1, 2: 3})
    case.step({0: 5, 1: 1, 2: 18, 3: 1})
    case.step({0: 1, 1: 1, 2: 2, 3: 1})


def test_readers_of_one_prefix_and_of_another_and_of_none(case: AttentionCase) -> None:
    case.step({0: 40, 1: 33, 2: 11})
    for reader in (3, 4, 5):
        case.share(reader, owner=0, prefix_len=32)
    case.share(6, owner=1, prefix_len=16)
    case.step({2: 1, 3: 1, 4: 9, 5: 1, 6: 20})
    for _ in range(2):
        case.step(dict.fromkeys(range(7), 1))


@pytest.mark.parametrize("seed", range(3))
def test_any_mixture_of_steps(make_attention: MakeAttention, page_size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ratio, head_dim = SHAPES[rng.integers(len(SHAPES))]
    config = attention_config(ratio, head_dim, num_kv_heads=int(rng.integers(1, 4)))
    case = AttentionCase(make_attention(config, page_size), config, page_size, seed)
    for _ in range(6):
        chosen = rng.choice(8, size=rng.integers(1, 9), replace=False)
        case.step({int(sequence): int(rng.choice([1, 1, 2, 19])) for sequence in chosen})
