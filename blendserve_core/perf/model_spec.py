"""The sizes of a Llama-family model that decide its cost, read from a Hugging Face ``config.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A dense decoder of the Llama family (Llama, Mistral, Qwen2, Qwen3). Counts are of the whole model, over all ranks.

    ``tensor_parallel`` is the number of devices that share each layer. ``has_qkv_bias`` says that the query, key and
    value projections have a bias (Qwen2), ``has_qk_norm`` that queries and keys are normalised per head (Qwen3).
    ``kv_dtype_bytes`` is where the KV cache has another number format than the weights.
    """

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied_embeddings: bool
    dtype_bytes: int = 2
    tensor_parallel: int = 1
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    kv_dtype_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.name}: {self.num_heads} heads are no multiple of {self.num_kv_heads} key-value heads")
        if self.tensor_parallel < 1 or self.num_heads % self.tensor_parallel:
            raise ValueError(
                f"{self.name}: {self.num_heads} heads cannot be cut over tensor_parallel={self.tensor_parallel}; use a divisor"
            )

    @property
    def query_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def num_layer_parameters(self) -> int:
        """Parameters of one layer: projections, biases and norms."""
        attention = 2 * self.hidden_size * (self.query_width + self.kv_width)
        attention += self.has_qkv_bias * (self.query_width + 2 * self.kv_width) + self.has_output_bias * self.hidden_size
        mlp = 3 * self.hidden_size * self.intermediate_size
        mlp += self.has_mlp_bias * (2 * self.intermediate_size + self.hidden_size)
        return attention + mlp + 2 * self.hidden_size + self.has_qk_norm * 2 * self.head_dim

    @property
    def num_parameters(self) -> int:
        """Parameters without input embeddings and lm_head: the P of the paper's section 4."""
        return self.num_layers * self.num_layer_parameters + self.hidden_size

    @property
    def num_embedding_parameters(self) -> int:
        """Parameters of one vocabulary matrix (input embeddings, or lm_head)."""
        return self.vocab_size * self.hidden_size

    @property
    def num_stored_parameters(self) -> int:
        """Everything that lies in memory, tied embeddings once."""
        return self.num_parameters + self.num_embedding_parameters * (1 if self.tied_embeddings else 2)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one token over all layers and all ranks."""
        return 2 * self.kv_width * self.num_layers * (self.kv_dtype_bytes or self.dtype_bytes)

    def with_tensor_parallel(self, degree: int) -> ModelSpec:
        return replace(self, tensor_parallel=degree)

    def with_kv_dtype_bytes(self, num_bytes: int | None) -> ModelSpec:
        return replace(self, kv_dtype_bytes=num_bytes)

    @classmethod
    def from_config(
        cls, source: Mapping[str, Any] | Path | str, *, tensor_parallel: int = 1, dtype: str | None = None
    ) -> ModelSpec:
        """Read a ``config.json`` given as a dict, its path, or the folder it lies in. ``dtype`` overrides the config's own.

        Raises ValueError for a missing size, an unknown dtype, or a mixture of experts (whose cost this model does not know).
        """
        config = _read(source)
        name = str(config.get("_name_or_path") or config.get("model_type", "model"))
        if any(config.get(key) for key in ("num_local_experts", "num_experts", "n_routed_experts")):
            raise ValueError(f"{name}: mixture-of-experts models are not supported; use a dense model")
        num_heads = _size(config, "num_attention_heads")
        is_qwen2 = config.get("model_type") == "qwen2"
        has_bias = bool(config.get("attention_bias", False))
        return cls(
            name=name,
            num_layers=_size(config, "num_hidden_layers"),
            hidden_size=_size(config, "hidden_size"),
            intermediate_size=_size(config, "intermediate_size"),
            num_heads=num_heads,
            num_kv_heads=config.get("num_key_value_heads") or num_heads,
            head_dim=config.get("head_dim") or _size(config, "hidden_size") // num_heads,
            vocab_size=_size(config, "vocab_size"),
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            dtype_bytes=_dtype_bytes(dtype or config.get("dtype") or config.get("torch_dtype") or "bfloat16"),
            tensor_parallel=tensor_parallel,
            has_qkv_bias=has_bias or is_qwen2,
            has_output_bias=has_bias,
            has_mlp_bias=bool(config.get("mlp_bias", False)),
            has_qk_norm=config.get("model_type") == "qwen3",
        )


def _read(source: Mapping[str, Any] | Path | str) -> Mapping[str, Any]:
    if not isinstance(source, Mapping):
        path = Path(source)
        source = json.loads((path / "config.json" if path.is_dir() else path).read_text(encoding="utf-8"))
    assert isinstance(source, Mapping)
    return source.get("text_config", source)


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"model config has {key}={value!r}; a Llama-family config.json with a positive {key} is needed")
    return value


def _dtype_bytes(dtype: str) -> int:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise ValueError(f"dtype {dtype!r} is not known; use one of {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[name]
