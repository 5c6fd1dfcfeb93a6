"""Scratch memory of FlashInfer's attention kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blendserve_core.engine.model.config import ModelConfig

# Enough for every plan outside graphs, which splits sequences into no more pieces than the device has room for.
WORKSPACE_BYTES = 128 * 2**20
# Two blocks on each multiprocessor; no device has more of these.
MAX_BLOCKS = 2 * 160


@dataclass(frozen=True, slots=True)
class Workspaces:
    """One for each stream, because kernels on one stream take turns."""

    chunks: Tensor
    decodes: Tensor

    @classmethod
    def allocate(cls, device: torch.device | str, graph_bytes: int = 0) -> Workspaces:
        """``graph_bytes`` is what :func:`graph_workspace_bytes` says where decodes are captured."""
        sizes = WORKSPACE_BYTES, max(WORKSPACE_BYTES, graph_bytes)
        return cls(*(torch.empty(num_bytes, dtype=torch.uint8, device=device) for num_bytes in sizes))


def graph_workspace_bytes(config: ModelConfig, num_rows: int) -> int:
    """What the kernel of ``num_rows`` decodes in a CUDA graph wants, whatever their lengths: as many pieces as it has blocks.

    A block takes a tile of rows times query heads per KV head, and a float32 result of each is kept (PrefillPlan in
    FlashInfer's scheduler.cuh).
    """
    ratio = config.num_heads // config.num_kv_heads
    tile = next(size for size in (16, 64, 128) if ratio <= size)
    num_blocks = max(MAX_BLOCKS // config.num_kv_heads, -(-num_rows * ratio // tile) + num_rows - 1)
    num_partial_rows = -(-num_blocks * tile // ratio)
    alignment = 2 * 16
    return config.num_heads * num_partial_rows * (config.head_dim + 1) * 4 + alignment
