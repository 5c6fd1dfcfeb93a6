"""From a few timings of the CPU engine's own operators to the rates the cost model needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from blendserve_core.perf.cascade import CascadeCosts, Saving
from blendserve_core.perf.hardware import HardwareSpec, cpu

# Noise must not make more work look free: a line rises by at least this share of its later point's mean.
MIN_SLOPE_SHARE = 0.1

Point = tuple[float, float]
"""(amount of work, seconds it took)."""


@dataclass(frozen=True, slots=True)
class CpuTimings:
    """Medians of repeated runs, with the threads and kernels an engine uses and data that lies beyond the cache.

    num_parameters, weight_bytes  of the matrices in a pass over some layers
    layers          such passes without attention, over (rows, seconds) of one row, of few, and of many
    prefill         prefill attention, (floating-point operations, seconds)
    decode          decode attention of one layer over short and over long contexts, (bytes of KV read, seconds)
    cascade         what a layer saves where a prefix is read once; None where the kernels cannot do that
    """

    num_parameters: int
    weight_bytes: int
    layers: tuple[Point, Point, Point]
    prefill: Point
    decode: tuple[Point, Point]
    cascade: tuple[Saving, Saving, Saving] | None = None

    def hardware(self, num_cores: int, memory_bytes: float) -> HardwareSpec:
        """The machine as these timings show it. A pass of one row is a read of the weights and little else."""
        (_, weights_s), few, many = self.layers
        row_s, fixed_s = _line(few, many)
        gemm_flops_per_s = 2 * self.num_parameters / row_s
        kv_byte_s, decode_layer_fixed_s = _line(*self.decode)
        flops, prefill_s = self.prefill
        return replace(
            cpu(num_cores, memory_bytes),
            name="cpu (measured)",
            gemm_flops_per_s=gemm_flops_per_s,
            gemm_fixed_share=fixed_s / weights_s,
            lm_head_flops_per_s=gemm_flops_per_s,
            weight_bytes_per_s=self.weight_bytes / weights_s,
            attention_flops_per_s=flops / prefill_s,
            kv_bytes_per_s=1 / kv_byte_s,
            decode_layer_fixed_s=decode_layer_fixed_s,
        )

    @property
    def cascade_costs(self) -> CascadeCosts:
        return CascadeCosts() if self.cascade is None else CascadeCosts.from_savings(*self.cascade)


def _line(first: Point, second: Point) -> tuple[float, float]:
    """Slope and intercept (at least 0) of the line through two points."""
    (x0, y0), (x1, y1) = first, second
    slope = max((y1 - y0) / (x1 - x0), MIN_SLOPE_SHARE * y1 / x1)
    return slope, max(y1 - slope * x1, 0.0)
