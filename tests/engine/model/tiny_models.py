"""Tiny random models of every architecture, made by transformers, and the plainest attention to run ours with."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.llama import Attend, Decoder
from blendserve_core.engine.model.rope import Rope, rotate

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def random_model(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """Every parameter random, biases and norms too, which transformers would leave at zero and one."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + ("norm" in name))
    return model


def saved_model(config: PreTrainedConfig, folder: Path, **options: object) -> PreTrainedModel:
    model = random_model(config)
    model.save_pretrained(folder, **options)
    return model


def reference_logits(model: PreTrainedModel, token_ids: Tensor) -> Tensor:
    """[T, V] for one prompt [T]."""
    with torch.inference_mode():
        return model(token_ids[None]).logits[0]


def our_logits(decoder: Decoder, token_ids: Tensor) -> Tensor:
    with torch.inference_mode():
        return decoder.logits(decoder.forward(token_ids, one_sequence(decoder.config, len(token_ids))))


def one_sequence(config: ModelConfig, num_tokens: int) -> Attend:
    """Causal attention over a single sequence from its start, without a cache."""
    rotation = Rope(config).rotation(torch.arange(num_tokens))

    def attend(layer: int, qkv: Tensor) -> Tensor:
        q, k, v = qkv.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=1)
        q, k, v = (heads.transpose(0, 1)[None] for heads in (rotate(q, rotation), rotate(k, rotation), v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out[0].transpose(0, 1).flatten(1)

    return attend
