"""Linear maps of bfloat16 rows by the native kernel.

With AVX512_BF16 it is as fast as oneDNN in large batches and up to 1.7 times as fast in small ones. Where the processor knows
no bfloat16, oneDNN has no kernel for it, and PyTorch's own is ten times slower. A row's result does not depend on its batch,
which oneDNN, choosing another kernel for every size, does not promise.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from blendserve_core.engine.cpu.native.kernels import Isa, NativeKernels
from blendserve_core.engine.cpu.ops import is_packable

PACK = 2


class LinearArgs(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_void_p) for name in ("x", "panels", "bias", "out")],
        ("num_rows", ctypes.c_int64),
        *[(name, ctypes.c_int32) for name in ("num_inputs", "num_outputs", "out_is_float32")],
    ]


def fits_native_linear(kernels: NativeKernels, weight: Tensor) -> bool:
    """Whether the kernel can take this weight [out, in], and should: a matrix unit is faster, and oneDNN uses it."""
    num_outputs, num_inputs = weight.shape
    is_whole = num_outputs % kernels.linear_panel == 0 and num_inputs % PACK == 0
    is_faster = kernels.isa is Isa.AVX512_BF16 and not kernels.has_matrix_unit
    return weight.dtype == torch.bfloat16 and is_whole and (is_faster or not is_packable(weight.dtype))


class NativeLinear:
    """Maps [T, in] to [T, out], in bfloat16 or, with ``out_dtype``, in the float32 that it is summed in."""

    def __init__(
        self, kernels: NativeKernels, weight: Tensor, bias: Tensor | None, out_dtype: torch.dtype = torch.bfloat16
    ) -> None:
        self._kernels = kernels
        self._panels = pack_panels(weight, kernels.linear_panel)
        self._operand_dtype = torch.bfloat16 if kernels.isa is Isa.AVX512_BF16 else torch.float32
        self._bias = None if bias is None else bias.float().contiguous()
        self._out_dtype = out_dtype
        self._num_outputs, self._num_inputs = weight.shape
        self._args = LinearArgs(  # building it anew for every call would take a third of the call's Python time
            panels=self._panels.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            num_inputs=self._num_inputs,
            num_outputs=self._num_outputs,
            out_is_float32=out_dtype == torch.float32,
        )

    def __call__(self, x: Tensor) -> Tensor:
        args, (num_rows, num_inputs) = self._args, x.shape
        if x.dtype != torch.bfloat16 or num_inputs != self._num_inputs:
            raise ValueError(f"expected bfloat16 rows of {self._num_inputs}, not {x.dtype} {tuple(x.shape)}")
        rows = x.to(self._operand_dtype).contiguous()
        out = torch.empty(num_rows, self._num_outputs, dtype=self._out_dtype)
        args.x, args.out, args.num_rows = rows.data_ptr(), out.data_ptr(), num_rows
        self._kernels.linear(args)
        return out


def pack_panels(weight: Tensor, panel: int) -> Tensor:
    """[out, in] as [out / panel, in / 2, panel, 2]."""
    num_outputs, num_inputs = weight.shape
    return weight.view(num_outputs // panel, panel, num_inputs // PACK, PACK).transpose(1, 2).contiguous()
