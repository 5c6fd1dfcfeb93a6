"""FlashInfer's functions in plain PyTorch, with its contract checked at every call.

Number formats are free, float32 too, so that tokens can be compared with the CPU engine's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from blendserve_core.engine.cuda.kernels import Kernels

LN2 = math.log(2.0)


class StandInWrapper:
    """BatchPrefillWithPagedKVCacheWrapper."""

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor | None = None,
        paged_kv_indptr_buf: Tensor | None = None,
        paged_kv_indices_buf: Tensor | None = None,
        paged_kv_last_page_len_buf: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        assert kv_layout == "NHD"
        assert backend == "fa2", "auto takes another module on another device"
        assert float_workspace_buffer.dtype == torch.uint8
        self.buffers = qo_indptr_buf, paged_kv_indptr_buf, paged_kv_indices_buf, paged_kv_last_page_len_buf
        assert not use_cuda_graph or all(buffer is not None for buffer in self.buffers)
        self.is_graph = use_cuda_graph
        self.workspace_bytes = len(float_workspace_buffer)
        self.is_planned = False

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        causal: bool = False,
        sm_scale: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
        non_blocking: bool = True,
    ) -> None:
        arrays = qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len
        for array in arrays:
            assert array.dtype == torch.int32
            assert array.dim() == 1
            assert array.is_contiguous()
        num_sequences = len(paged_kv_last_page_len)
        assert num_sequences > 0, "a batch of no sequences is not planned"
        assert len(qo_indptr) == len(paged_kv_indptr) == num_sequences + 1
        assert qo_indptr[0] == 0
        assert paged_kv_indptr[0] == 0
        assert (qo_indptr.diff() > 0).all()
        assert (paged_kv_indptr.diff() > 0).all(), "each sequence has a page"
        assert paged_kv_indptr[-1] == len(paged_kv_indices)
        assert ((paged_kv_last_page_len >= 1) & (paged_kv_last_page_len <= page_size)).all()
        kv_lens = (paged_kv_indptr.diff() - 1) * page_size + paged_kv_last_page_len
        assert not causal or (kv_lens >= qo_indptr.diff()).all()
        assert num_qo_heads % num_kv_heads == 0
        if self.is_graph:
            assert len(qo_indptr) == len(self.buffers[0]), "the batch size of a graph is fixed"
            assert len(paged_kv_indices) <= len(self.buffers[2])
            assert self.workspace_bytes >= split_bytes(num_sequences, num_qo_heads, num_kv_heads, head_dim_qk)
            for buffer, array in zip(self.buffers, arrays, strict=True):
                buffer[: len(array)].copy_(array)
            arrays = tuple(self.buffers)
        self.arrays = tuple(array if self.is_graph else array.clone() for array in arrays)
        self.shape = num_qo_heads, num_kv_heads, head_dim_qk
        self.page_size, self.is_causal = page_size, causal
        self.scale = head_dim_qk**-0.5 if sm_scale is None else sm_scale
        self.dtypes = q_data_type, kv_data_type or q_data_type
        self.is_planned = True

    def run(
        self, q: Tensor, paged_kv_cache: Tensor, *, out: Tensor | None = None, return_lse: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        assert self.is_planned, "plan comes before run"
        num_heads, num_kv_heads, head_dim = self.shape
        assert q.dtype == self.dtypes[0]
        assert paged_kv_cache.dtype == self.dtypes[1]
        assert paged_kv_cache.shape[1:] == (2, self.page_size, num_kv_heads, head_dim)
        row_indptr, kv_indptr, indices, last = self.arrays
        assert q.shape == (int(row_indptr[-1]), num_heads, head_dim)
        assert q.stride(-1) == 1
        result = torch.empty_like(q) if out is None else out
        assert result.shape == q.shape
        assert result.is_contiguous()
        lse = torch.empty(q.shape[:2])
        for i in range(len(last)):
            rows = slice(int(row_indptr[i]), int(row_indptr[i + 1]))
            pages = indices[int(kv_indptr[i]) : int(kv_indptr[i + 1])].long()
            kv_len = (len(pages) - 1) * self.page_size + int(last[i])
            keys, values = paged_kv_cache[pages].float().transpose(0, 1).flatten(1, 2)[:, :kv_len]
            result[rows], lse[rows] = attend(q[rows].float(), keys, values, self.scale, self.is_causal)
        return (result, lse / LN2) if return_lse else result


def split_bytes(num_rows: int, num_qo_heads: int, num_kv_heads: int, head_dim: int, num_sms: int = 132) -> int:
    """Float workspace of so many decodes in a graph: PrefillSplitQOKVIndptr and PrefillPlan of 0.7.4, line by line."""
    gqa_group_size = num_qo_heads // num_kv_heads
    max_batch_size_if_split = 2 * num_sms // num_kv_heads
    cta_tile_q = 16 if gqa_group_size <= 16 else 64 if gqa_group_size <= 64 else 128
    total_num_tiles_q = math.ceil(num_rows * gqa_group_size / cta_tile_q) + num_rows - 1
    padded_batch_size = max(max_batch_size_if_split, total_num_tiles_q)
    max_partial_rows = math.ceil(padded_batch_size * cta_tile_q / gqa_group_size)
    v_offset_end = math.ceil(num_qo_heads * max_partial_rows * head_dim * 4 / 16) * 16
    return v_offset_end + num_qo_heads * max_partial_rows * 4


def attend(q: Tensor, keys: Tensor, values: Tensor, scale: float, is_causal: bool) -> tuple[Tensor, Tensor]:
    """[n, Hq, D] over [t, Hkv, D]; the last query sees all keys. Returns the result and the natural log-sum-exp [n, Hq]."""
    ratio = q.shape[1] // keys.shape[1]
    keys, values = (kv.repeat_interleave(ratio, dim=1) for kv in (keys, values))
    scores = torch.einsum("nhd,thd->nht", q, keys) * scale
    if is_causal:
        num_hidden = len(keys) - len(q)
        is_hidden = torch.arange(len(keys)) > torch.arange(len(q))[:, None] + num_hidden
        scores = scores.masked_fill(is_hidden[:, None], -torch.inf)
    return torch.einsum("nht,thd->nhd", scores.softmax(-1), values), scores.logsumexp(-1)


def append_paged_kv_cache(
    append_key: Tensor,
    append_value: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
    paged_kv_cache: Tensor,
    kv_indices: Tensor,
    kv_indptr: Tensor,
    kv_last_page_len: Tensor,
    kv_layout: str = "NHD",
) -> None:
    assert kv_layout == "NHD"
    for array in (batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len):
        assert array.dtype == torch.int32
    assert append_key.dtype == append_value.dtype == paged_kv_cache.dtype
    assert len(append_key) == len(append_value) == len(batch_indices) == len(positions)
    page_size = paged_kv_cache.shape[2]
    entries = kv_indptr[batch_indices.long()] + positions // page_size
    assert (entries < kv_indptr[batch_indices.long() + 1]).all(), "a token behind its sequence's last page"
    pages, offsets = kv_indices[entries.long()].long(), (positions % page_size).long()
    raw = paged_kv_cache.view(torch.uint8)
    raw[pages, 0, offsets] = append_key.contiguous().view(torch.uint8)
    raw[pages, 1, offsets] = append_value.contiguous().view(torch.uint8)


def merge_state_in_place(v: Tensor, s: Tensor, v_other: Tensor, s_other: Tensor, mask: Tensor | None = None) -> None:
    for tensor in (v, s, v_other, s_other):
        assert tensor.is_contiguous()
    assert s.dtype == s_other.dtype == torch.float32
    assert v.shape == v_other.shape
    assert s.shape == s_other.shape == v.shape[:2]
    total = torch.logaddexp2(s, s_other)
    merged = v.float() * (s - total).exp2()[..., None] + v_other.float() * (s_other - total).exp2()[..., None]
    v.copy_(merged)
    s.copy_(total)


def apply_rope(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
) -> None:
    assert positions.dtype == torch.int32
    assert cos_sin_cache.dtype == torch.float32
    assert cos_sin_cache.is_contiguous()
    assert is_neox
    assert (positions < len(cos_sin_cache)).all()
    cos, sin = cos_sin_cache[positions.long()][:, None].chunk(2, dim=-1)
    for heads in (query, key):
        assert heads.stride(-1) == 1
        assert heads.shape[-1] == head_size
        first, second = heads.float().chunk(2, dim=-1)
        heads.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))


def rmsnorm(input: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    assert input.dim() in (2, 3)
    assert input.stride(-1) == 1
    assert weight.shape == (input.shape[-1],)
    return F.rms_norm(input, weight.shape, weight, eps)


def fused_add_rmsnorm(input: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6) -> None:
    assert input.shape == residual.shape
    assert input.dim() == 2
    residual.add_(input)
    input.copy_(F.rms_norm(residual, weight.shape, weight, eps))


def silu_and_mul(input: Tensor) -> Tensor:
    assert input.shape[-1] % 16 == 0, "rows are read 16 bytes at a time"
    gate, up = input.chunk(2, dim=-1)
    return F.silu(gate) * up


def top_k_renorm_probs(probs: Tensor, top_k: Tensor) -> Tensor:
    assert probs.dtype == torch.float32
    assert top_k.dtype == torch.int32
    assert (top_k >= 1).all()
    least = probs.sort(dim=-1, descending=True).values.gather(1, top_k.long()[:, None] - 1)
    kept = probs.masked_fill(probs < least, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def top_p_renorm_probs(probs: Tensor, top_p: Tensor) -> Tensor:
    assert probs.dtype == torch.float32
    assert top_p.dtype == torch.float32
    ordered = probs.sort(dim=-1, descending=True).values
    num_kept = ((ordered.cumsum(-1) - ordered) < top_p[:, None]).sum(-1, keepdim=True)
    kept = probs.masked_fill(probs < ordered.gather(1, num_kept - 1), 0.0)
    return kept / kept.sum(-1, keepdim=True)


def stand_in_kernels(wrapper: Callable[..., Any] = StandInWrapper) -> Kernels:
    return Kernels(
        attention_wrapper=wrapper,
        append_paged_kv_cache=append_paged_kv_cache,
        merge_state_in_place=merge_state_in_place,
        apply_rope=apply_rope,
        rmsnorm=rmsnorm,
        fused_add_rmsnorm=fused_add_rmsnorm,
        silu_and_mul=silu_and_mul,
        top_k_renorm_probs=top_k_renorm_probs,
        top_p_renorm_probs=top_p_renorm_probs,
    )
