"""The native kernels as functions over torch tensors. Every argument is contiguous and checked; nothing is copied."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from blendserve_core.engine.cpu.native.arguments import (
    AttentionArgs,
    MergeArgs,
    NormArgs,
    ReadArgs,
    RopeArgs,
    SiluArgs,
    checked_dtype,
    checked_width,
    pointer,
)
from blendserve_core.engine.cpu.native.layout import PAGE_SIZE
from blendserve_core.engine.cpu.native.library import load_library


class Isa(IntEnum):
    """Instruction sets the kernels are compiled for, in order of preference."""

    PORTABLE = 0
    AVX2 = 1
    AVX512 = 2
    AVX512_BF16 = 3


_DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1}


@dataclass(frozen=True, slots=True)
class AttentionGroups:
    """Which query rows read which pages. G groups, R listed rows; a row may be listed in several calls, once in each.

    group_indptr [G + 1] CSR over ``row_ids`` and ``kv_lens``
    row_ids      [R] rows of q
    kv_lens      [R] tokens the row reads, from its group's first page on; grows inside a prefill chunk (causal mask)
    page_starts  [G] where the group's pages begin in ``page_indices``
    page_indices physical pages
    """

    group_indptr: NDArray[np.int32]
    row_ids: NDArray[np.int32]
    kv_lens: NDArray[np.int32]
    page_starts: NDArray[np.int32]
    page_indices: NDArray[np.int32]

    def __post_init__(self) -> None:
        for name in self.__slots__:
            array = getattr(self, name)
            if array.dtype != np.int32 or not array.flags.c_contiguous:
                raise ValueError(f"{name} must be a contiguous int32 array, not {array.dtype}")

    @property
    def num_groups(self) -> int:
        return len(self.group_indptr) - 1


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """Attention of one step, for any layer: the argument is that layer's pages."""

    args: AttentionArgs
    run: Callable[[], None]
    pointed_at: tuple[object, ...]  # args holds bare addresses

    def __call__(self, kv_pages: torch.Tensor) -> None:
        self.args.kv_pages = kv_pages.data_ptr()
        self.run()


@dataclass(frozen=True, slots=True)
class AppendCall:
    """Rotation and append of one step, for any layer: the arguments are its queries, keys and values, and its pages."""

    args: RopeArgs
    run: Callable[[], None]
    pointed_at: tuple[object, ...]

    def __call__(self, qkv: torch.Tensor, kv_pages: torch.Tensor) -> None:
        self.args.qkv, self.args.qkv_row_stride = pointer(qkv, rows_only=True), qkv.stride(0)
        self.args.kv_pages = kv_pages.data_ptr()
        self.run()


class NativeKernels:
    """Kernels of one instruction set on a fixed number of threads.

    ``isa`` None takes the best this processor has. Raises NativeUnavailableError where they cannot be built.
    """

    def __init__(self, num_threads: int = 1, isa: Isa | None = None, cache_folder: Path | None = None) -> None:
        self._library = load_library(cache_folder)
        best = Isa(self._library.blend_best_isa())
        if isa is not None and isa > best:
            raise ValueError(f"this processor has no {isa.name}; its best is {best.name}")
        self.isa = best if isa is None else isa
        self.num_threads = num_threads
        self.has_matrix_unit = bool(self._library.blend_has_matrix_unit())
        self.linear_panel = int(self._library.blend_linear_panel(self.isa))

    def attention(
        self,
        q: torch.Tensor,
        kv_pages: torch.Tensor,
        groups: AttentionGroups,
        scale: float,
        out: torch.Tensor,
        lse: torch.Tensor | None = None,
    ) -> None:
        """As :meth:`prepare_attention`, of one layer."""
        self.prepare_attention(q, kv_pages, groups, scale, out, lse)(kv_pages)

    def prepare_attention(
        self,
        q: torch.Tensor,
        kv_pages: torch.Tensor,
        groups: AttentionGroups,
        scale: float,
        out: torch.Tensor,
        lse: torch.Tensor | None = None,
    ) -> AttentionCall:
        """Attention of every listed row, written to its row of ``out`` and (natural logarithm) ``lse``.

        q [rows, Hq, D], out [rows, Hq, D] of q's dtype or float32, lse [rows, Hq] float32,
        kv_pages any layer of ``layout.allocate_pages``. Rows that no group lists are left as they are.
        """
        checked_dtype(kv_pages, q.dtype)
        num_kv_heads, head_dim = kv_pages.shape[1], q.shape[2]
        if q.shape[1] % num_kv_heads or kv_pages.shape[-1] != PAGE_SIZE * head_dim or out.shape != q.shape:
            raise ValueError(f"q {tuple(q.shape)}, out {tuple(out.shape)} and pages {tuple(kv_pages.shape)} do not fit")
        args = AttentionArgs(
            q=pointer(q, rows_only=True),
            out=pointer(out),
            lse=None if lse is None else pointer(checked_dtype(lse, torch.float32)),
            row_ids=groups.row_ids.ctypes.data,
            kv_lens=groups.kv_lens.ctypes.data,
            group_indptr=groups.group_indptr.ctypes.data,
            page_starts=groups.page_starts.ctypes.data,
            page_indices=groups.page_indices.ctypes.data,
            q_row_stride=q.stride(0),
            num_groups=groups.num_groups,
            num_q_heads=q.shape[1],
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            scale=scale,
            out_is_float32=out.dtype == torch.float32,
        )
        run = partial(self._library.blend_attention, ctypes.byref(args), _DTYPE_CODES[q.dtype], self.isa, self.num_threads)
        return AttentionCall(args, run, (q, groups, out, lse))

    def rope_and_append(
        self,
        qkv: torch.Tensor,
        kv_pages: torch.Tensor,
        cosines: torch.Tensor,
        sines: torch.Tensor,
        slots: NDArray[np.int64],
        q_out: torch.Tensor,
    ) -> None:
        """As :meth:`prepare_append`, of one layer."""
        self.prepare_append(kv_pages, cosines, sines, slots, q_out)(qkv, kv_pages)

    def prepare_append(
        self, kv_pages: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, slots: NDArray[np.int64], q_out: torch.Tensor
    ) -> AppendCall:
        """Rotates queries into ``q_out`` [T, Hq, D] and writes rotated keys, and values, to ``slots`` (page * 16 + offset).

        qkv [T, Hq + 2 Hkv, D]; cosines and sines [T, D / 2] float32. Slots of one sequence come in position order.
        """
        checked_dtype(kv_pages, q_out.dtype)
        num_tokens, num_q_heads, head_dim = q_out.shape
        if slots.shape != (num_tokens,) or kv_pages.shape[-1] != PAGE_SIZE * head_dim:
            raise ValueError(f"q_out {tuple(q_out.shape)}, {slots.shape} slots and pages {tuple(kv_pages.shape)} do not fit")
        args = RopeArgs(
            q_out=pointer(q_out),
            cosines=pointer(checked_dtype(cosines, torch.float32)),
            sines=pointer(checked_dtype(sines, torch.float32)),
            slots=slots.ctypes.data,
            num_q_heads=num_q_heads,
            num_kv_heads=kv_pages.shape[1],
            head_dim=head_dim,
        )
        run = partial(self._run, self._library.blend_rope_and_append, args, num_tokens, q_out.dtype)
        return AppendCall(args, run, (q_out, cosines, sines, slots))

    def linear(self, args: ctypes.Structure) -> None:
        """As ``linear.NativeLinear`` prepares it."""
        self._library.blend_linear(ctypes.byref(args), self.isa, self.num_threads)

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, epsilon: float, out: torch.Tensor, residual: torch.Tensor | None = None
    ) -> None:
        """out = x / rms(x) * weight for [rows, dim]; with a residual, ``residual += x`` first and that sum is normalised."""
        for tensor in (weight, out) if residual is None else (weight, out, residual):
            checked_dtype(tensor, x.dtype)
        args = NormArgs(
            x=pointer(x),
            residual=None if residual is None else pointer(residual),
            weight=pointer(weight),
            out=pointer(out),
            dim=checked_width(x.shape[-1]),
            epsilon=epsilon,
        )
        self._run(self._library.blend_rms_norm, args, x.shape[0], x.dtype)

    def silu_and_multiply(self, gate_up: torch.Tensor, out: torch.Tensor) -> None:
        """out [rows, dim] = silu(gate) * up, with gate_up [rows, 2 * dim]."""
        checked_dtype(out, gate_up.dtype)
        args = SiluArgs(gate_up=pointer(gate_up), out=pointer(out), dim=checked_width(out.shape[-1]))
        self._run(self._library.blend_silu_and_multiply, args, out.shape[0], out.dtype)

    def merge_states(
        self,
        out_a: torch.Tensor,
        lse_a: torch.Tensor,
        out_b: torch.Tensor,
        lse_b: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor | None = None,
    ) -> None:
        """Joins two attention states over disjoint tokens: out_* [rows, Hq, D] float32, lse_* [rows, Hq], -inf for none."""
        for tensor in (out_a, lse_a, out_b, lse_b):
            checked_dtype(tensor, torch.float32)
        args = MergeArgs(
            out_a=pointer(out_a),
            lse_a=pointer(lse_a),
            out_b=pointer(out_b),
            lse_b=pointer(lse_b),
            out=pointer(out),
            lse=None if lse is None else pointer(lse),
            head_dim=checked_width(out.shape[-1]),
        )
        self._run(self._library.blend_merge_states, args, lse_a.numel(), out.dtype)

    def sum_words(self, tensor: torch.Tensor) -> int:
        """Sum of the tensor's 32-bit words modulo 2^32, on one thread: a streaming read, to measure memory bandwidth."""
        num_words = tensor.numel() * tensor.element_size() // 4
        args = ReadArgs(words=pointer(tensor), num_words=num_words - num_words % 64)
        return self._library.blend_sum_words(ctypes.byref(args), self.isa)

    def _run(self, function: Callable[..., None], args: ctypes.Structure, num_items: int, dtype: torch.dtype) -> None:
        function(ctypes.byref(args), num_items, _DTYPE_CODES[dtype], self.isa, self.num_threads)
