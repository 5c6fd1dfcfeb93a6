"""Arguments of the native kernels as C structures, and the checks that stand between a tensor and its bare address."""

from __future__ import annotations

import ctypes

import torch

from blendserve_core.engine.cpu.native.layout import WIDTH_MULTIPLE


def _fields(pointers: str, **numbers: type) -> list[tuple[str, type]]:
    return [(name, ctypes.c_void_p) for name in pointers.split()] + list(numbers.items())


class AttentionArgs(ctypes.Structure):
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


class RopeArgs(ctypes.Structure):
    _fields_ = _fields(
        "qkv q_out kv_pages cosines sines slots",
        qkv_row_stride=ctypes.c_int64,
        num_q_heads=ctypes.c_int32,
        num_kv_heads=ctypes.c_int32,
        head_dim=ctypes.c_int32,
    )


class NormArgs(ctypes.Structure):
    _fields_ = _fields("x residual weight out", dim=ctypes.c_int32, epsilon=ctypes.c_float)


class SiluArgs(ctypes.Structure):
    _fields_ = _fields("gate_up out", dim=ctypes.c_int32)


class ReadArgs(ctypes.Structure):
    _fields_ = _fields("words", num_words=ctypes.c_int64)


class MergeArgs(ctypes.Structure):
    _fields_ = _fields("out_a lse_a out_b lse_b out lse", head_dim=ctypes.c_int32)


def pointer(tensor: torch.Tensor, rows_only: bool = False) -> int:
    """Address of a contiguous tensor; with ``rows_only`` the first dimension may be strided."""
    rows = tensor[0] if rows_only and tensor.shape[0] else tensor
    if not rows.is_contiguous():
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} is not contiguous")
    return tensor.data_ptr()


def checked_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.dtype != dtype:
        raise ValueError(f"expected {dtype}, got a tensor of {tensor.dtype}")
    return tensor


def checked_width(dim: int) -> int:
    if dim % WIDTH_MULTIPLE:
        raise ValueError(f"the last dimension must be a multiple of {WIDTH_MULTIPLE}, not {dim}")
    return dim
