"""Weights from safetensors files, single or sharded, into a :class:`Decoder`. Nothing is ever unpickled."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.llama import Decoder, DecoderLayer
from blendserve_core.engine.model.ops import Linear, TorchOps

EMBEDDINGS, FINAL_NORM, LM_HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


class Checkpoint:
    """The tensors of a model folder by name, each read when asked for, in the number format and to the device asked for."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: str = "cpu") -> None:
        self.folder = folder
        self.dtype = dtype
        self._files = [safe_open(path, framework="pt", device=device) for path in weight_files(folder)]
        self._file_of = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118

    @property
    def names(self) -> set[str]:
        return set(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file_of[name].get_slice(name).get_shape())

    def get(self, *names: str) -> Tensor:
        """One tensor, or several joined along their first dimension."""
        parts = [self.read(name).to(self.dtype) for name in names]
        # A lone tensor may still be a view of the mapped file, which unpacked weights would keep reading from.
        return parts[0].clone() if len(parts) == 1 else torch.cat(parts)

    def read(self, name: str) -> Tensor:
        """A tensor as it is stored."""
        return self._file_of[name].get_tensor(name)

    def read_part(self, name: str, dim: int, start: int, end: int) -> Tensor:
        """Entries ``start`` to ``end`` of a stored tensor along ``dim`` 0 or 1; the rest is not read."""
        stored = self._file_of[name].get_slice(name)
        return stored[start:end] if dim == 0 else stored[:, start:end]


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that make up the model: some repositories keep a second copy of it under other names."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    elif (folder / "model.safetensors").is_file():
        names = ["model.safetensors"]
    else:
        names = sorted(path.name for path in folder.glob("*.safetensors"))
    if not names:
        raise ValueError(f"{folder} holds no *.safetensors files; pickled weights are never read, convert them first")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise ValueError(f"{folder} is incomplete: {_some(missing)} stand in {index.name} but are not there; fetch them again")
    return [folder / name for name in names]


def load_decoder(folder: Path, ops: TorchOps, dtype: torch.dtype) -> Decoder:
    """Build the model in ``folder``. Raises ValueError naming every missing, unexpected or misshapen tensor."""
    config = ModelConfig.from_folder(folder)
    checkpoint = Checkpoint(folder, dtype)
    check_tensors(config, checkpoint)
    return build_decoder(config, checkpoint, ops)


def build_decoder(config: ModelConfig, checkpoint: Checkpoint, ops: TorchOps) -> Decoder:
    """A model of these sizes from a checkpoint that was checked, or from one rank's part of it."""
    return Decoder(
        config=config,
        ops=ops,
        embeddings=checkpoint.get(EMBEDDINGS),
        layers=tuple(_load_layer(f"model.layers.{index}", config, checkpoint, ops) for index in range(config.num_layers)),
        final_norm=checkpoint.get(FINAL_NORM),
        lm_head=ops.lm_head(checkpoint.get(EMBEDDINGS if config.tie_word_embeddings else LM_HEAD)),
    )


def _load_layer(prefix: str, config: ModelConfig, checkpoint: Checkpoint, ops: TorchOps) -> DecoderLayer:
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"

    def linear(has_bias: bool, *modules: str) -> Linear:
        weight = checkpoint.get(*(f"{module}.weight" for module in modules))
        bias = checkpoint.get(*(f"{module}.bias" for module in modules)) if has_bias else None
        return ops.linear(weight, bias)

    return DecoderLayer(
        input_norm=checkpoint.get(f"{prefix}.input_layernorm.weight"),
        qkv=linear(config.qkv_bias, *(f"{attention}.{name}_proj" for name in "qkv")),
        q_norm=checkpoint.get(f"{attention}.q_norm.weight") if config.qk_norm else None,
        k_norm=checkpoint.get(f"{attention}.k_norm.weight") if config.qk_norm else None,
        output=linear(config.output_bias, f"{attention}.o_proj"),
        mlp_norm=checkpoint.get(f"{prefix}.post_attention_layernorm.weight"),
        gate_up=linear(config.mlp_bias, f"{mlp}.gate_proj", f"{mlp}.up_proj"),
        down=linear(config.mlp_bias, f"{mlp}.down_proj"),
    )


def check_tensors(config: ModelConfig, checkpoint: Checkpoint) -> None:
    """Compare names and shapes with what the config calls for, before anything is read."""
    expected = tensor_shapes(config)
    # Old Llama checkpoints store the rotary frequencies; tied models may store the embeddings a second time.
    ignored = {name for name in checkpoint.names if name.endswith("rotary_emb.inv_freq")}
    ignored |= {LM_HEAD} if config.tie_word_embeddings else set()
    missing = sorted(expected.keys() - checkpoint.names)
    unexpected = sorted(checkpoint.names - expected.keys() - ignored)
    if missing or unexpected:
        raise ValueError(f"{checkpoint.folder}: missing tensors {_some(missing)}; unexpected tensors {_some(unexpected)}")
    found = {name: checkpoint.shape(name) for name in expected}
    misshapen = [f"{name} {found[name]} instead of {shape}" for name, shape in expected.items() if found[name] != shape]
    if misshapen:
        raise ValueError(f"{checkpoint.folder}: config.json does not fit the weights: {_some(misshapen)}")


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint, under its Hugging Face name."""
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDINGS: (config.vocab_size, config.hidden_size),
        FINAL_NORM: (config.hidden_size,),
    }
    if not config.tie_word_embeddings:
        shapes[LM_HEAD] = (config.vocab_size, config.hidden_size)
    for index in range(config.num_layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in _layer_shapes(config).items()}
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, query, kv, inner = config.hidden_size, config.query_size, config.kv_size, config.intermediate_size
    linears = {
        "self_attn.q_proj": (query, hidden, config.qkv_bias),
        "self_attn.k_proj": (kv, hidden, config.qkv_bias),
        "self_attn.v_proj": (kv, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, query, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (out, into) for name, (out, into, _) in linears.items()}
    shapes |= {f"{name}.bias": (out,) for name, (out, _, has_bias) in linears.items() if has_bias}
    shapes |= {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    if config.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    return shapes


def _some(names: list[str]) -> str:
    """The first few of a list that may run to hundreds."""
    shown = ", ".join(names[:8]) or "none"
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
