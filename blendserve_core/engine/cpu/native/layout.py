"""How the native kernels keep KV: one layer's pages as [pages, KV heads, 2, page_size * head_dim], K and V of a head together.

bfloat16: K is [head_dim / 2][page_size][2] and V is [page_size / 2][head_dim][2], two values of the reduction dimension in
one 32-bit word, so that a dot instruction takes a word per lane. float32: K is [head_dim][page_size], V is [page_size][head_dim].
"""

from __future__ import annotations

import torch

PAGE_SIZE = 16


def allocate_pages(num_layers: int, num_pages: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    """[layers, pages, KV heads, 2, PAGE_SIZE * head_dim], zero. Raises ValueError for a shape the kernels do not read."""
    if dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"KV pages hold bfloat16 or float32, not {dtype}")
    if head_dim % 16 or not 16 <= head_dim <= 512:
        raise ValueError(f"head_dim {head_dim} is not a multiple of 16 up to 512: use the torch kernels")
    return torch.zeros(num_layers, num_pages, num_kv_heads, 2, PAGE_SIZE * head_dim, dtype=dtype)


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
