"""From a few timings of the CUDA engine's operators to the rates that the cost model needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from blendserve_core.perf.cpu_timings import CpuTimings, Point
from blendserve_core.perf.cuda_measured import CudaMeasurement
from blendserve_core.perf.overlap import OverlapRates

# Memory that is neither weights nor KV: contexts, workspaces, activations, captured graphs.
RESERVED_BYTES = 5e9
# A part of the multiprocessors that is this near to all of them draws the whole bandwidth.
SATURATED = 1.05


@dataclass(frozen=True, slots=True)
class CudaTimings:
    """Seconds on one device, each a median.

    operators        GEMMs, prefill and decode attention on all multiprocessors, as on a CPU
    lm_head          (floating-point operations, seconds)
    decode_on_sms    decode attention over long contexts by its multiprocessors, and the same on all of them
    whole_s          (compute, memory) of one step that is about balanced
    overlapped_s     the same step on split multiprocessors;  streams_s: on plain streams
    """

    operators: CpuTimings
    lm_head: Point
    decode_on_sms: Mapping[int, float]
    decode_on_all_s: float
    whole_s: tuple[float, float]
    overlapped_s: float
    streams_s: float

    def measurement(self, name: str, num_sms: int, memory_bytes: float) -> CudaMeasurement:
        flops, lm_head_s = self.lm_head
        hardware = replace(
            self.operators.hardware(1, memory_bytes),
            name=name,
            lm_head_flops_per_s=flops / lm_head_s,
            reserved_bytes=RESERVED_BYTES,
        )
        return CudaMeasurement(hardware, self._overlap(num_sms), self._interference())

    def _overlap(self, num_sms: int) -> OverlapRates:
        """Attention's time on a part is taken to fall with its size until it draws the whole bandwidth."""
        slowdowns = {sms: seconds / self.decode_on_all_s for sms, seconds in self.decode_on_sms.items()}
        needed = [sms * slowdown for sms, slowdown in slowdowns.items() if slowdown > SATURATED]
        saturating = median(needed) if needed else float(min(slowdowns, default=num_sms))
        return OverlapRates(num_sms, saturating, sharing=max(1.0, self.streams_s / max(self.whole_s)))

    def _interference(self) -> float:
        """Of the shorter resource's time, what shows beside the longer's."""
        shown = (self.overlapped_s - max(self.whole_s)) / min(self.whole_s)
        return min(max(shown, 0.0), 1.0)
