"""The native kernels as functions over torch tensors. Every argument is contiguous and checked; nothing is copied."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from blendserve_core.engine.cpu.native.layout import PAGE_SIZE, WIDTH_MULTIPLE
from blendserve_core.engine.cpu.native.library import load_library


class Isa(IntEnum):
    """Instruction sets the kernels are compiled for, in order of preference."""

    PORTABLE = 0
    AVX2 = 1
    AVX512 = 2
    AVX512_BF16 = 3


_DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1}


def _fields(pointers: str, **numbers: type) -> list[tuple[str, type]]:
    return [(name, ctypes.c_void_p) for name in pointers.split()] + list(numbers.items())


class _AttentionArgs(ctypes.Structure):
    _fields_ = _fields(
        "q kv_pages out lse row_ids kv_lens group_indptr page_starts page_indices",
        q_row_stride=ctypes.c_int64,
        num_groups=ctypes.c_int32,
        num_q_heads=ctypes.c_int32,
        num_kv_heads=ctypes.c_int32,
        head_dim=ctypes.c_int32,
        scale=ctypes.c_float,
        out_is_float32=ctypes.c_int32,
    )


class _RopeArgs(ctypes.Structure):
    _fields_ = _fields(
        "qkv q_out kv_pages cosines sines slots",
        qkv_row_stride=ctypes.c_int64,
        num_q_heads=ctypes.c_int32,
        num_kv_heads=ctypes.c_int32,
        head_dim=ctypes.c_int32,
    )


class _NormArgs(ctypes.Structure):
    _fields_ = _fields("x residual weight out", dim=ctypes.c_int32, epsilon=ctypes.c_float)


class _SiluArgs(ctypes.Structure):
    _fields_ = _fields("gate_up out", dim=ctypes.c_int32)


class _ReadArgs(ctypes.Structure):
    _fields_ = _fields("words", num_words=ctypes.c_int64)


class _MergeArgs(ctypes.Structure):
    _fields_ = _fields("out_a lse_a out_b lse_b out lse", head_dim=ctypes.c_int32)


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

    def attention(
        self,
        q: torch.Tensor,
        kv_pages: torch.Tensor,
        groups: AttentionGroups,
        scale: float,
        out: torch.Tensor,
        lse: torch.Tensor | None = None,
    ) -> None:
        """Attention of every listed row, written to its row of ``out`` and (natural logarithm) ``lse``.

        q [rows, Hq, D], out [rows, Hq, D] of q's dtype or float32, lse [rows, Hq] float32,
        kv_pages one layer of ``layout.allocate_pages``. Rows that no group lists are left as they are.
        """
        _check_dtype(kv_pages, q.dtype)
        num_kv_heads, head_dim = kv_pages.shape[1], q.shape[2]
        if q.shape[1] % num_kv_heads or kv_pages.shape[-1] != PAGE_SIZE * head_dim or out.shape != q.shape:
            raise ValueError(f"q {tuple(q.shape)}, out {tuple(out.shape)} and pages {tuple(kv_pages.shape)} do not fit")
        args = _AttentionArgs(
            q=_pointer(q, rows_only=True),
            kv_pages=_pointer(kv_pages),
            out=_pointer(out),
            lse=None if lse is None else _pointer(_check_dtype(lse, torch.float32)),
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
        self._library.blend_attention(ctypes.byref(args), _DTYPE_CODES[q.dtype], self.isa, self.num_threads)

    def rope_and_append(
        self,
        qkv: torch.Tensor,
        kv_pages: torch.Tensor,
        cosines: torch.Tensor,
        sines: torch.Tensor,
        slots: NDArray[np.int64],
        q_out: torch.Tensor,
    ) -> None:
        """Rotates queries into ``q_out`` [T, Hq, D] and writes rotated keys, and values, to ``slots`` (page * 16 + offset).

        qkv [T, Hq + 2 Hkv, D]; cosines and sines [T, D / 2] float32. Slots of one sequence come in position order.
        """
        _check_dtype(kv_pages, qkv.dtype)
        num_tokens, num_heads, head_dim = qkv.shape
        num_kv_heads = kv_pages.shape[1]
        if q_out.shape != (num_tokens, num_heads - 2 * num_kv_heads, head_dim) or q_out.dtype != qkv.dtype:
            raise ValueError(f"qkv {tuple(qkv.shape)} and q_out {tuple(q_out.shape)} do not fit {num_kv_heads} KV heads")
        args = _RopeArgs(
            qkv=_pointer(qkv, rows_only=True),
            q_out=_pointer(q_out),
            kv_pages=_pointer(kv_pages),
            cosines=_pointer(_check_dtype(cosines, torch.float32)),
            sines=_pointer(_check_dtype(sines, torch.float32)),
            slots=slots.ctypes.data,
            qkv_row_stride=qkv.stride(0),
            num_q_heads=q_out.shape[1],
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
        )
        self._run(self._library.blend_rope_and_append, args, num_tokens, qkv.dtype)

    def linear(self, args: ctypes.Structure) -> None:
        """As ``linear.NativeLinear`` prepares it."""
        self._library.blend_linear(ctypes.byref(args), self.num_threads)

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, epsilon: float, out: torch.Tensor, residual: torch.Tensor | None = None
    ) -> None:
        """out = x / rms(x) * weight for [rows, dim]; with a residual, ``residual += x`` first and that sum is normalised."""
        for tensor in (weight, out) if residual is None else (weight, out, residual):
            _check_dtype(tensor, x.dtype)
        args = _NormArgs(
            x=_pointer(x),
            residual=None if residual is None else _pointer(residual),
            weight=_pointer(weight),
            out=_pointer(out),
            dim=_check_width(x.shape[-1]),
            epsilon=epsilon,
        )
        self._run(self._library.blend_rms_norm, args, x.shape[0], x.dtype)

    def silu_and_multiply(self, gate_up: torch.Tensor, out: torch.Tensor) -> None:
        """out [rows, dim] = silu(gate) * up, with gate_up [rows, 2 * dim]."""
        _check_dtype(out, gate_up.dtype)
        args = _SiluArgs(gate_up=_pointer(gate_up), out=_pointer(out), dim=_check_width(out.shape[-1]))
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
            _check_dtype(tensor, torch.float32)
        args = _MergeArgs(
            out_a=_pointer(out_a),
            lse_a=_pointer(lse_a),
            out_b=_pointer(out_b),
            lse_b=_pointer(lse_b),
            out=_pointer(out),
            lse=None if lse is None else _pointer(lse),
            head_dim=_check_width(out.shape[-1]),
        )
        self._run(self._library.blend_merge_states, args, lse_a.numel(), out.dtype)

    def sum_words(self, tensor: torch.Tensor) -> int:
        """Sum of the tensor's 32-bit words modulo 2^32, on one thread: a streaming read, to measure memory bandwidth."""
        num_words = tensor.numel() * tensor.element_size() // 4
        args = _ReadArgs(words=_pointer(tensor), num_words=num_words - num_words % 64)
        return self._library.blend_sum_words(ctypes.byref(args), self.isa)

    def _run(self, function: Callable[..., None], args: ctypes.Structure, num_items: int, dtype: torch.dtype) -> None:
        function(ctypes.byref(args), num_items, _DTYPE_CODES[dtype], self.isa, self.num_threads)


def _pointer(tensor: torch.Tensor, rows_only: bool = False) -> int:
    """Address of a contiguous tensor; with ``rows_only`` the first dimension may be strided."""
    rows = tensor[0] if rows_only and tensor.shape[0] else tensor
    if not rows.is_contiguous():
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} is not contiguous")
    return tensor.data_ptr()


def _check_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.dtype != dtype:
        raise ValueError(f"expected {dtype}, got a tensor of {tensor.dtype}")
    return tensor


def _check_width(dim: int) -> int:
    if dim % WIDTH_MULTIPLE:
        raise ValueError(f"the last dimension must be a multiple of {WIDTH_MULTIPLE}, not {dim}")
    return dim
