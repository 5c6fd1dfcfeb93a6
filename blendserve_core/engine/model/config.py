"""What of a Hugging Face ``config.json`` the engine needs, for decoders of the Llama family."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embeddings. ``scaling`` holds the numbers that ``rope_type`` needs, under their Hugging Face names."""

    theta: float
    rope_type: str
    scaling: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama family: Llama, Mistral, Qwen2 and Qwen3 differ only in these fields."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_context_tokens: int
    rope: RopeConfig
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read ``folder/config.json``. Raises ValueError for a model this engine would get wrong."""
        path = folder / "config.json"
        if not path.is_file():
            raise ValueError(f"{folder} is no model folder: it has no config.json")
        return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Read the keys as transformers 4 and 5 write them, with transformers' defaults for those left out."""
        architecture = values.get("model_type", "")
        _check_served(values, architecture)
        num_heads = values["num_attention_heads"]
        rope = _rope_config(values)
        max_context_tokens = _max_context_tokens(values, rope)
        _check_full_attention(values, architecture, max_context_tokens)
        attention_bias = bool(values.get("attention_bias"))
        return cls(
            architecture=architecture,
            vocab_size=values["vocab_size"],
            hidden_size=values["hidden_size"],
            intermediate_size=values["intermediate_size"],
            num_layers=values["num_hidden_layers"],
            num_heads=num_heads,
            num_kv_heads=values.get("num_key_value_heads") or num_heads,
            head_dim=_head_dim(values, architecture),
            rms_norm_eps=values.get("rms_norm_eps", 1e-6),
            max_context_tokens=max_context_tokens,
            rope=rope,
            qkv_bias=architecture == "qwen2" or attention_bias,
            output_bias=architecture != "qwen2" and attention_bias,
            mlp_bias=architecture == "llama" and bool(values.get("mlp_bias")),
            qk_norm=architecture == "qwen3",
            tie_word_embeddings=bool(values.get("tie_word_embeddings")),
        )


def _check_served(values: Mapping[str, Any], architecture: str) -> None:
    if architecture not in ARCHITECTURES:
        raise ValueError(f"model_type {architecture!r} is not served; choose a model of type {', '.join(ARCHITECTURES)}")
    if "quantization_config" in values:
        raise ValueError("quantized weights are not served; choose the bfloat16 or float32 release of this model")
    if (activation := values.get("hidden_act", "silu")) != "silu":
        raise ValueError(f"hidden_act {activation!r} is not served; the Llama family uses silu")


def _head_dim(values: Mapping[str, Any], architecture: str) -> int:
    if head_dim := values.get("head_dim"):
        return head_dim
    return 128 if architecture == "qwen3" else values["hidden_size"] // values["num_attention_heads"]


def _rope_config(values: Mapping[str, Any]) -> RopeConfig:
    # transformers 5 writes rope_parameters, transformers 4 rope_theta beside rope_scaling (whose type was once "type").
    rope = dict(values.get("rope_parameters") or values.get("rope_scaling") or {})
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    if rope_type not in ROPE_TYPES:
        raise ValueError(f"rope scaling {rope_type!r} is not served; known are {', '.join(ROPE_TYPES)}")
    if values.get("partial_rotary_factor", rope.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ValueError("a partial_rotary_factor other than 1 is not served")
    theta = rope.get("rope_theta") or values.get("rope_theta") or 10_000.0
    if rope_type in ("llama3", "yarn"):
        rope.setdefault("original_max_position_embeddings", values["max_position_embeddings"])
    scaling = {name: value for name, value in rope.items() if isinstance(value, int | float) and name != "rope_theta"}
    return RopeConfig(theta=theta, rope_type=rope_type, scaling=scaling)


def _max_context_tokens(values: Mapping[str, Any], rope: RopeConfig) -> int:
    stated = values["max_position_embeddings"]
    if rope.rope_type != "yarn":
        return stated
    # Configs that add yarn by hand leave max_position_embeddings at the trained length.
    return max(stated, int(rope.scaling["factor"] * rope.scaling["original_max_position_embeddings"]))


def _check_full_attention(values: Mapping[str, Any], architecture: str, max_context_tokens: int) -> None:
    """Refuse a sliding window that would cut the context: every layer here attends to all tokens."""
    window = values.get("sliding_window")
    is_windowed = architecture == "mistral" or values.get("use_sliding_window", False)
    if architecture != "llama" and is_windowed and window is not None and window < max_context_tokens:
        raise ValueError(
            f"sliding_window {window} is shorter than the context of {max_context_tokens} tokens and is not served; "
            f"set max_position_embeddings to {window} in config.json to use the model up to its window"
        )
