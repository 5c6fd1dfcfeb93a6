"""How the native kernels keep KV: one layer's pages as [pages, KV heads, 2, page_size * head_dim], K and V of a head together.

float32: K is [head_dim][page_size] and V is [page_size][head_dim]. bfloat16: K is [head_dim / 2][page_size][2] and V is
[page_size / 2][head_dim][2], two values of the reduction dimension in one 32-bit word, as dot instructions take them.
"""

from __future__ import annotations

import torch

from blendserve_core.engine.cpu.kv_pool import zeros_on_demand

PAGE_SIZE = 16
WIDTH_MULTIPLE = 16  # lanes of the widest vectors
MAX_HEAD_DIM = 512


def allocate_pages(num_layers: int, num_pages: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    """[layers, pages, KV heads, 2, PAGE_SIZE * head_dim], zero. Raises ValueError for a shape the kernels do not read."""
    if dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"KV pages hold bfloat16 or float32, not {dtype}")
    if head_dim % WIDTH_MULTIPLE or head_dim > MAX_HEAD_DIM:
        raise ValueError(
            f"head_dim {head_dim} is not a multiple of {WIDTH_MULTIPLE} up to {MAX_HEAD_DIM}: use the torch kernels"
        )
    return zeros_on_demand((num_layers, num_pages, num_kv_heads, 2, PAGE_SIZE * head_dim), dtype)


def pack_pages(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Pages [..., 2, PAGE_SIZE * head_dim] from K and V by slot, both [..., PAGE_SIZE, head_dim]."""
    pack = 4 // keys.element_size()
    packed_keys = keys.unflatten(-1, (-1, pack)).movedim(-3, -2)
    packed_values = values.unflatten(-2, (-1, pack)).movedim(-2, -1)
    return torch.stack([packed_keys.flatten(-3), packed_values.flatten(-3)], dim=-2)


def unpack_pages(pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V by slot, both [..., PAGE_SIZE, head_dim]; the inverse of ``pack_pages``."""
    pack = 4 // pages.element_size()
    keys = pages[..., 0, :].unflatten(-1, (-1, PAGE_SIZE, pack)).movedim(-2, -3)
    values = pages[..., 1, :].unflatten(-1, (PAGE_SIZE // pack, -1, pack)).movedim(-1, -2)
    return keys.flatten(-2), values.flatten(-3, -2)
