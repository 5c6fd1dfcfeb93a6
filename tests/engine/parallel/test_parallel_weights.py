"""A model cut over ranks gives what the whole model gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from thread_group import ThreadGroup, on_every_rank
from tiny_models import SIZES, our_logits, saved_model
from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.ops import TorchOps
from blendserve_core.engine.model.weights import load_decoder
from blendserve_core.engine.parallel.group import OneRank
from blendserve_core.engine.parallel.weights import load_part, part_config

EVEN = SIZES | {"vocab_size": 96}
CONFIGS = {
    "llama": LlamaConfig(**EVEN),
    "llama with an odd vocabulary": LlamaConfig(**SIZES),
    "llama with biases": LlamaConfig(**EVEN, attention_bias=True, mlp_bias=True),
    "qwen2 tied": Qwen2Config(**EVEN, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**EVEN, head_dim=16),
}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_every_rank_has_the_logits_of_the_whole_model(config: PreTrainedConfig, size: int, tmp_path: Path) -> None:
    saved_model(config, tmp_path)
    token_ids = torch.arange(30)
    whole = our_logits(load_decoder(tmp_path, TorchOps(), torch.float32), token_ids)

    def logits_of_rank(group: ThreadGroup) -> torch.Tensor:
        return our_logits(load_part(tmp_path, TorchOps(), torch.float32, group), token_ids)

    for logits in on_every_rank(size, logits_of_rank):
        torch.testing.assert_close(logits, whole, atol=1e-5, rtol=1e-5)


def test_one_rank_holds_the_whole_model(tmp_path: Path) -> None:
    saved_model(CONFIGS["llama"], tmp_path)
    token_ids = torch.arange(30)
    whole = our_logits(load_decoder(tmp_path, TorchOps(), torch.float32), token_ids)
    assert torch.equal(our_logits(load_part(tmp_path, TorchOps(), torch.float32, OneRank()), token_ids), whole)


def test_fewer_kv_heads_than_ranks_are_held_several_times(tmp_path: Path) -> None:
    saved_model(CONFIGS["llama"], tmp_path)
    assert part_config(ModelConfig.from_folder(tmp_path), 4).num_kv_heads == 1


def test_a_model_that_cannot_be_cut_is_refused(tmp_path: Path) -> None:
    saved_model(CONFIGS["llama"], tmp_path)
    with pytest.raises(ValueError, match="tensor_parallel=3 does not divide 4 heads"):
        part_config(ModelConfig.from_folder(tmp_path), 3)
