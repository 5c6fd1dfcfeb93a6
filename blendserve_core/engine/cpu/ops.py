"""Linear maps whose weights are laid out once for this CPU's matrix kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from blendserve_core.engine.model.ops import Linear, TorchOps


class PackedOps(TorchOps):
    """oneDNN with prepacked weights; plain PyTorch repacks them at every call, or leaves float32 to a slower library."""

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        if not is_packable(weight.dtype):
            return super().linear(weight, bias)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        linear_pointwise = torch.ops.mkldnn._linear_pointwise.default
        return lambda x: linear_pointwise(x, packed, bias, "none", [], "")


def is_packable(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes in this number format here: float32 always, bfloat16 from AVX-512 on."""
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
