"""The decoder's arithmetic on a GPU: PyTorch's matrix products, FlashInfer's norms and activation."""

from __future__ import annotations

from torch import Tensor

from blendserve_core.engine.cuda.kernels import Kernels
from blendserve_core.engine.model.ops import TorchOps


class FlashInferOps(TorchOps):
    """Norms and activation in one pass over memory each."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._kernels.rmsnorm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """As in the base class; both are changed in place."""
        self._kernels.fused_add_rmsnorm(x, residual, weight, eps)
        return x, residual

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return self._kernels.silu_and_mul(gate_up)
