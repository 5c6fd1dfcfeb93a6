"""Our decoder against transformers' on tiny random weights of every architecture, in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import SIZES, our_logits, random_model, reference_logits, saved_model
from transformers import LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from blendserve_core.engine.cpu.ops import PackedOps
from blendserve_core.engine.model.ops import TorchOps
from blendserve_core.engine.model.weights import load_decoder

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}

CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "llama tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama with one KV head per head": LlamaConfig(**SIZES | {"num_key_value_heads": 4}),
    "llama with one KV head": LlamaConfig(**SIZES | {"num_key_value_heads": 1}),
    "llama with wide heads": LlamaConfig(**SIZES, head_dim=24),
    "llama with biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama 3.1": LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE),
    "llama stretched": LlamaConfig(**SIZES, rope_parameters=LINEAR_ROPE),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "qwen2": Qwen2Config(**SIZES),
    "qwen2 tied": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen2 yarn": Qwen2Config(**SIZES, rope_parameters=YARN_ROPE),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "qwen3 with biases": Qwen3Config(**SIZES, head_dim=16, attention_bias=True),
}


@pytest.mark.parametrize("ops", [TorchOps(), PackedOps()], ids=["plain", "packed"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_logits_equal_those_of_transformers(config: PreTrainedConfig, ops: TorchOps, tmp_path: Path) -> None:
    reference = saved_model(config, tmp_path)
    token_ids = torch.randint(0, SIZES["vocab_size"], (70,))
    logits = our_logits(load_decoder(tmp_path, ops, torch.float32), token_ids)
    torch.testing.assert_close(logits, reference_logits(reference, token_ids), atol=2e-4, rtol=2e-4)


def test_sharded_weights_give_the_same_logits_as_one_file(tmp_path: Path) -> None:
    config = CONFIGS["qwen3"]
    saved_model(config, tmp_path / "one")
    saved_model(config, tmp_path / "many", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    token_ids = torch.arange(40)
    whole, sharded = (
        our_logits(load_decoder(tmp_path / name, TorchOps(), torch.float32), token_ids) for name in ("one", "many")
    )
    assert torch.equal(whole, sharded)


def test_bfloat16_logits_are_as_near_to_float32_as_those_of_transformers(tmp_path: Path) -> None:
    config = CONFIGS["llama"]
    exact = reference_logits(saved_model(config, tmp_path), token_ids := torch.arange(60))
    theirs = reference_logits(random_model(config).to(torch.bfloat16), token_ids)
    ours = our_logits(load_decoder(tmp_path, PackedOps(), torch.bfloat16), token_ids)
    assert (ours.float() - exact).square().mean() < 1.2 * (theirs.float() - exact).square().mean()
