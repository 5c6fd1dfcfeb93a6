"""Random attention over scattered pages, and what it must give, computed in float64 without pages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blendserve_core.engine.cpu.native.kernels import AttentionGroups
from blendserve_core.engine.cpu.native.layout import PAGE_SIZE, pack_pages


@dataclass(frozen=True)
class PagedCase:
    """Sequences with KV on pages in random order. ``keys`` and ``values`` are [tokens, Hkv, D] each, one per sequence."""

    pages: Tensor
    page_indices: np.ndarray
    page_starts: np.ndarray
    keys: list[Tensor]
    values: list[Tensor]

    def groups(self, rows_of: list[list[int]], lens_of: list[list[int]], first_page: int = 0) -> AttentionGroups:
        """One group per sequence: its rows and how many tokens each reads, from ``first_page`` on."""
        return AttentionGroups(
            group_indptr=np.cumsum([0, *map(len, rows_of)]).astype(np.int32),
            row_ids=np.array([row for rows in rows_of for row in rows], dtype=np.int32),
            kv_lens=np.array([length for lens in lens_of for length in lens], dtype=np.int32),
            page_starts=(self.page_starts + first_page).astype(np.int32),
            page_indices=self.page_indices,
        )


def paged_case(lens: list[int], num_kv_heads: int, head_dim: int, dtype: torch.dtype, seed: int = 0) -> PagedCase:
    generator = torch.Generator().manual_seed(seed)
    num_pages_of = [-(-length // PAGE_SIZE) for length in lens]
    num_pages = sum(num_pages_of) + 3
    order = np.random.default_rng(seed).permutation(num_pages).astype(np.int32)
    slots = torch.randn(2, num_pages, num_kv_heads, PAGE_SIZE, head_dim, generator=generator).to(dtype)
    starts = np.concatenate([[0], np.cumsum(num_pages_of)])[:-1]
    by_sequence = []
    for start, count, length in zip(starts, num_pages_of, lens, strict=True):
        own = slots[:, order[start : start + count]].transpose(2, 3).flatten(1, 2)  # [2, count * PAGE_SIZE, Hkv, D]
        by_sequence.append(own[:, :length])
    return PagedCase(
        pages=pack_pages(slots[0], slots[1]),
        page_indices=order,
        page_starts=starts,
        keys=[kv[0] for kv in by_sequence],
        values=[kv[1] for kv in by_sequence],
    )


def dense_attention(q: Tensor, keys: Tensor, values: Tensor, lens: list[int], scale: float) -> tuple[Tensor, Tensor]:
    """Output [rows, Hq, D] and log-sum-exp [rows, Hq] of q [rows, Hq, D]; row i reads the first ``lens[i]`` tokens."""
    ratio = q.shape[1] // keys.shape[1]
    keys, values = (kv.double().repeat_interleave(ratio, dim=1) for kv in (keys, values))
    scores = torch.einsum("rhd,thd->rht", q.double(), keys) * scale
    is_hidden = torch.arange(len(keys)) >= torch.tensor(lens)[:, None]
    scores = scores.masked_fill(is_hidden[:, None], -torch.inf)
    return torch.einsum("rht,thd->rhd", scores.softmax(-1), values).float(), scores.logsumexp(-1).float()
