"""The arithmetic a decoder is made of, in plain PyTorch: the reference, and the base that faster kernels override."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

Linear = Callable[[Tensor], Tensor]


class TorchOps:
    """Operations on a flat batch of T tokens. Norms are computed in float32 and rounded once."""

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Take over ``weight`` [out, in] and ``bias`` [out]; the result maps [T, in] to [T, out]."""
        return lambda x: F.linear(x, weight, bias)

    def lm_head(self, weight: Tensor) -> Linear:
        """A linear map whose results may come in float32 where ``weight`` does not."""
        return self.linear(weight, None)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Normalise the last dimension of ``x`` (a row, or one head of it)."""
        return F.rms_norm(x, weight.shape, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Add ``x`` to the residual stream; return the sum normalised, and the sum."""
        residual = residual + x
        return self.rms_norm(residual, weight, eps), residual

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """[T, 2 * intermediate] to [T, intermediate]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up
