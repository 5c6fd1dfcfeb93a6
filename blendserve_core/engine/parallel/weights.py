"""One rank's part of a model: heads, MLP columns and vocabulary are cut; norms and embeddings are held by every rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.llama import Decoder, DecoderLayer
from blendserve_core.engine.model.ops import TorchOps
from blendserve_core.engine.model.weights import LM_HEAD, Checkpoint, build_decoder, check_tensors
from blendserve_core.engine.parallel.group import Group
from blendserve_core.engine.parallel.linear import GatheredLinear, RowParallelLinear

ROWS, COLUMNS = 0, 1
CUT_DIMENSION = {
    "q_proj": ROWS,
    "k_proj": ROWS,
    "v_proj": ROWS,
    "o_proj": COLUMNS,
    "gate_proj": ROWS,
    "up_proj": ROWS,
    "down_proj": COLUMNS,
}


def load_part(folder: Path, ops: TorchOps, dtype: torch.dtype, group: Group, device: str = "cpu") -> Decoder:
    """The decoder of this rank, whose sums over the ranks are made by ``group``. Its config counts this rank's heads.

    Raises ValueError for a model folder that is unsound, or that cannot be cut into ``group.size`` parts.
    """
    config = ModelConfig.from_folder(folder)
    checkpoint = PartialCheckpoint(folder, dtype, device, config, group)
    check_tensors(config, checkpoint)
    decoder = build_decoder(part_config(config, group.size), checkpoint, ops)
    if group.size == 1:
        return decoder
    lm_head = GatheredLinear(decoder.lm_head, group) if is_vocabulary_cut(config, group.size) else decoder.lm_head
    return replace(decoder, layers=tuple(_parallel(layer, group) for layer in decoder.layers), lm_head=lm_head)


def part_config(config: ModelConfig, size: int) -> ModelConfig:
    """The sizes of one of ``size`` equal parts. Where there are fewer KV heads than ranks, several ranks hold the same one."""
    num_kv_heads = config.num_kv_heads
    if config.num_heads % size or config.intermediate_size % size or (num_kv_heads % size and size % num_kv_heads):
        raise ValueError(
            f"tensor_parallel={size} does not divide {config.num_heads} heads, {num_kv_heads} key-value heads and an "
            f"intermediate size of {config.intermediate_size}; use a smaller power of two"
        )
    return replace(
        config,
        num_heads=config.num_heads // size,
        num_kv_heads=max(1, num_kv_heads // size),
        intermediate_size=config.intermediate_size // size,
    )


def is_vocabulary_cut(config: ModelConfig, size: int) -> bool:
    """Tied embeddings are held whole by every rank, and the lm_head with them."""
    return not config.tie_word_embeddings and config.vocab_size % size == 0


class PartialCheckpoint(Checkpoint):
    """A checkpoint whose ``read`` gives this rank's part of every tensor that is cut."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: str, config: ModelConfig, group: Group) -> None:
        super().__init__(folder, dtype, device)
        self._config = config
        self._group = group

    def read(self, name: str) -> Tensor:
        module, _, kind = name.removeprefix("model.").rpartition(".")
        module = module.rpartition(".")[2]
        if name == LM_HEAD and is_vocabulary_cut(self._config, self._group.size):
            return self._part(name, ROWS, self._group.rank, self._group.size)
        dimension = CUT_DIMENSION.get(module)
        if dimension is None or self._group.size == 1:
            return super().read(name)
        if dimension == COLUMNS and kind == "bias":
            # What is added to a sum must be added once.
            bias = super().read(name)
            return bias if self._group.rank == 0 else torch.zeros_like(bias)
        num_parts = min(self._group.size, self._config.num_kv_heads) if module in ("k_proj", "v_proj") else self._group.size
        return self._part(name, dimension, self._group.rank * num_parts // self._group.size, num_parts)

    def _part(self, name: str, dimension: int, index: int, num_parts: int) -> Tensor:
        length = self.shape(name)[dimension] // num_parts
        return self.read_part(name, dimension, index * length, (index + 1) * length)


def _parallel(layer: DecoderLayer, group: Group) -> DecoderLayer:
    return replace(layer, output=RowParallelLinear(layer.output, group), down=RowParallelLinear(layer.down, group))
