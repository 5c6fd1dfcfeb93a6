"""Attention over the paged KV cache in plain PyTorch: the reference for every kernel, and what runs where none can be built.

Hq query heads and Hkv key-value heads of size D. Sequences with one new token are attended in groups of similar length,
longer ones one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from blendserve_core.engine.cpu.kv_pool import KVPool
from blendserve_core.engine.cpu.layout import num_new_tokens, token_positions, token_slots
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.rope import Rope, Rotation, rotate
from blendserve_core.schedule.step import StepPlan

# Tokens gathered at once for a decode group: a few megabytes, which stay in the last-level cache.
MAX_GROUP_TOKENS = 16_384


class PagedAttention(Protocol):
    """Owns the KV pool. One step is ``begin_step`` once, then ``attend`` for every layer in turn."""

    def begin_step(self, step: StepPlan) -> None:
        """Copy the pages that the step wants copied, and lay out its attention."""
        ...

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        """Rotate and keep the new tokens' keys and values, and attend: [T, Hq + 2 * Hkv, D] to [T, Hq * D]."""
        ...


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """B sequences with one new token each: its row in the step, pages [B, P], and a mask [B, 1, 1, P * page_size] to add."""

    rows: Tensor
    pages: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """One sequence with n new tokens: their rows, its pages [1, P], and the causal mask [n, P * page_size]."""

    rows: slice
    pages: Tensor
    mask: Tensor


class TorchAttention:
    """:class:`PagedAttention` by page gathers and scaled dot-product attention."""

    def __init__(self, config: ModelConfig, num_pages: int, page_size: int, dtype: torch.dtype) -> None:
        self._heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self._rope = Rope(config)
        self._pool = KVPool(config, num_pages, page_size, dtype)
        self._dtype = dtype
        self._rotation: Rotation
        self._slots: Tensor
        self._decodes: list[DecodeGroup]
        self._prefills: list[PrefillChunk]

    def begin_step(self, step: StepPlan) -> None:
        page_size = self._pool.page_size
        if len(step.copy_lens):
            self._pool.copy_pages(step.copy_src_pages, step.copy_dst_pages, step.copy_lens)
        positions = token_positions(step)
        self._rotation = self._rope.rotation(torch.from_numpy(positions))
        self._slots = torch.from_numpy(token_slots(step, positions, page_size))
        self._decodes = [_decode_group(step, members, page_size, self._dtype) for members in _decode_members(step, page_size)]
        self._prefills = [_prefill_chunk(step, i, page_size) for i in np.flatnonzero(num_new_tokens(step) > 1).tolist()]

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        q, k, v = qkv.split(self._heads, dim=1)
        q, k = rotate(q, self._rotation), rotate(k, self._rotation)
        self._pool.append(layer, self._slots, k, v)
        out = torch.empty_like(q)
        for group in self._decodes:
            out[group.rows] = self._attend_decodes(layer, q[group.rows], group)
        for chunk in self._prefills:
            out[chunk.rows] = self._attend_prefill(layer, q[chunk.rows], chunk)
        return out.flatten(1)

    def _attend_decodes(self, layer: int, q: Tensor, group: DecodeGroup) -> Tensor:
        """[B, Hq, D] to the same; the query heads that share a KV head stand in the place of query positions."""
        keys, values = self._pool.gather(layer, group.pages)  # [B, L, Hkv, D]
        q_by_kv_head = q.unflatten(1, (keys.shape[2], -1))  # [B, Hkv, Hq / Hkv, D]
        out = F.scaled_dot_product_attention(q_by_kv_head, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=group.mask)
        return out.flatten(1, 2)

    def _attend_prefill(self, layer: int, q: Tensor, chunk: PrefillChunk) -> Tensor:
        """[n, Hq, D] to the same."""
        keys, values = self._pool.gather(layer, chunk.pages)
        q, keys, values = q[None].transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=chunk.mask, enable_gqa=True)  # [1, Hq, n, D]
        return out[0].transpose(0, 1)


def _decode_members(step: StepPlan, page_size: int) -> Iterator[NDArray[np.int64]]:
    """Cut the sequences with one new token into groups in which no one is padded to more than twice its pages."""
    members = np.flatnonzero(num_new_tokens(step) == 1)
    num_pages = np.diff(step.page_indptr)
    members = members[np.argsort(-num_pages[members], kind="stable")]
    while len(members):
        longest = num_pages[members[0]]
        num_similar = int((2 * num_pages[members] >= longest).sum())
        num_fitting = max(1, MAX_GROUP_TOKENS // int(longest * page_size))
        size = min(num_similar, num_fitting)
        yield members[:size]
        members = members[size:]


def _decode_group(step: StepPlan, members: NDArray[np.int64], page_size: int, dtype: torch.dtype) -> DecodeGroup:
    first, num_pages = step.page_indptr[members], np.diff(step.page_indptr)[members]
    # Short page tables are padded with the sequence's last page; the mask hides it.
    offsets = np.minimum(np.arange(num_pages.max()), num_pages[:, None] - 1)
    pages = step.page_indices[first[:, None] + offsets]
    lens = (step.context_lens[members] + 1)[:, None]
    is_hidden = torch.from_numpy(np.arange(offsets.shape[1] * page_size) >= lens)
    mask = torch.zeros(is_hidden.shape, dtype=dtype).masked_fill_(is_hidden, -torch.inf)
    return DecodeGroup(torch.from_numpy(step.token_indptr[members]).long(), torch.from_numpy(pages), mask[:, None, None])


def _prefill_chunk(step: StepPlan, sequence: int, page_size: int) -> PrefillChunk:
    pages = step.page_indices[step.page_indptr[sequence] : step.page_indptr[sequence + 1]]
    start, end = int(step.token_indptr[sequence]), int(step.token_indptr[sequence + 1])
    positions = torch.arange(end - start) + int(step.context_lens[sequence])
    mask = torch.arange(len(pages) * page_size) <= positions[:, None]
    return PrefillChunk(slice(start, end), torch.from_numpy(pages)[None], mask)
