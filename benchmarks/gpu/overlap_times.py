"""What overlap gains: a step of decodes, whole and cut, at several ratios of GEMM time to attention time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from blendserve_core.engine.cpu.attention_times import plain_step
from blendserve_core.engine.cuda.calibrate import MAX_CONTEXT, OVERLAPPED_ROWS, OperatorBench
from blendserve_core.engine.cuda.lanes import Lanes

# GEMM time to attention time.
RATIOS = {"1:1": 1.0, "2:1": 2.0, "1:2": 0.5}


@dataclass(frozen=True, slots=True)
class OverlapTime:
    """Seconds of some layers of a step; ``speed_up`` is over compute_s + memory_s, what running them in turn takes."""

    ratio: str
    lanes: str
    compute_s: float
    memory_s: float
    step_s: float

    @property
    def speed_up(self) -> float:
        return (self.compute_s + self.memory_s) / self.step_s


def overlap_times(bench: OperatorBench, whole: Lanes, others: Mapping[str, Lanes]) -> list[OverlapTime]:
    """``others`` by name; the ratio is set by the decodes' context."""
    num_layers, times = bench.model.config.num_layers, []
    compute_s = bench.pass_s(OVERLAPPED_ROWS) * num_layers
    for name, ratio in RATIOS.items():
        step = plain_step(OVERLAPPED_ROWS, 1, _context(bench, whole, compute_s / ratio / num_layers))
        memory_s = bench.decode_s(step, whole) * num_layers
        times.append(OverlapTime(name, "none", compute_s, memory_s, compute_s + memory_s))
        for lanes_name, lanes in others.items():
            times.append(OverlapTime(name, lanes_name, compute_s, memory_s, bench.step_s(step, lanes)))
    return times


def _context(bench: OperatorBench, whole: Lanes, layer_s: float) -> int:
    """At which decode attention of a layer takes about so long, by a line through two contexts."""
    short, long = MAX_CONTEXT // 8, MAX_CONTEXT - 1
    short_s, long_s = (bench.decode_s(plain_step(OVERLAPPED_ROWS, 1, context), whole) for context in (short, long))
    context = short + (layer_s - short_s) * (long - short) / (long_s - short_s)
    return int(min(max(context, 16), MAX_CONTEXT - 1))


@dataclass(frozen=True, slots=True)
class Rates:
    """The two ceilings, measured: a large matrix product, and a copy (bytes read and written)."""

    gemm_flops_per_s: float
    copy_bytes_per_s: float


def measure_rates(seconds_of, device: torch.device) -> Rates:
    size, num_bytes = 8192, 2 * 2**30
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    source, target = (torch.randint(0, 255, (num_bytes,), dtype=torch.uint8, device=device) for _ in range(2))
    return Rates(2 * size**3 / seconds_of(lambda: a @ b), 2 * num_bytes / seconds_of(lambda: target.copy_(source)))
