"""The decoder's arithmetic on native kernels: one pass over memory for each norm and activation."""

from __future__ import annotations

import torch
from torch import Tensor

from blendserve_core.engine.cpu.native.kernels import NativeKernels
from blendserve_core.engine.cpu.native.linear import NativeLinear, fits_native_linear
from blendserve_core.engine.cpu.ops import PackedOps
from blendserve_core.engine.model.ops import Linear


class NativeOps(PackedOps):
    """Linear maps with weights laid out for the faster of two kernels, and fused norms and activations."""

    def __init__(self, kernels: NativeKernels) -> None:
        self._kernels = kernels

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        if not fits_native_linear(self._kernels, weight):
            return super().linear(weight, bias)
        return NativeLinear(self._kernels, weight, bias)

    def lm_head(self, weight: Tensor) -> Linear:
        if not fits_native_linear(self._kernels, weight):
            return super().lm_head(weight)
        return NativeLinear(self._kernels, weight, None, torch.float32)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows = x.contiguous()
        out = torch.empty_like(rows)
        self._kernels.rms_norm(rows.view(-1, len(weight)), weight, eps, out)
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """As in the base class; ``residual`` is changed in place."""
        out = torch.empty_like(x)
        self._kernels.rms_norm(x, weight, eps, out, residual)
        return out, residual

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        out = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
        self._kernels.silu_and_multiply(gate_up, out)
        return out
