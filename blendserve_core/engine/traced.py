"""A model's parts with every call in a span, put in place of the plain ones when an engine is profiled."""

from __future__ import annotations

from torch import Tensor

from blendserve_core.engine.cpu.attention import PagedAttention
from blendserve_core.engine.model.ops import Linear, TorchOps
from blendserve_core.trace import Tracer, traced


class TracedOps(TorchOps):
    """Linear maps count as "gemm", norms and activations as "elementwise"."""

    def __init__(self, ops: TorchOps, tracer: Tracer) -> None:
        self._ops = ops
        self._tracer = tracer
        self.rms_norm = traced(ops.rms_norm, tracer, "elementwise")
        self.add_rms_norm = traced(ops.add_rms_norm, tracer, "elementwise")
        self.silu_mul = traced(ops.silu_mul, tracer, "elementwise")

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        return traced(self._ops.linear(weight, bias), self._tracer, "gemm")

    def lm_head(self, weight: Tensor) -> Linear:
        return traced(self._ops.lm_head(weight), self._tracer, "gemm")


class TracedAttention:
    """A :class:`PagedAttention`. Laying out a step counts as "layout", rotation and the append to the cache as attention."""

    def __init__(self, attention: PagedAttention, tracer: Tracer) -> None:
        self.begin_step = traced(attention.begin_step, tracer, "layout")
        self.attend = traced(attention.attend, tracer, "attention")
