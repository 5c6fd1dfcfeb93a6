"""What one device can do, as the few measured rates the cost model needs.

The GPU presets are the fitted profiles of ``infra/hardware/``, where their sources and fit errors are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HardwareSpec:
    """Rates of one device, measured rather than peak.

    gemm_flops_per_s        slope of the layers' GEMMs over the tokens of a step
    gemm_fixed_share        their fixed part (launches, waves), as a share of the time to read the layers' weights
    lm_head_flops_per_s     the same slope for lm_head, one large GEMM
    weight_bytes_per_s      rate of reading weights, the floor of a small step
    attention_flops_per_s   prefill attention
    kv_bytes_per_s          slope of decode attention over the keys and values read
    decode_layer_fixed_s    fixed part of one layer's decode attention
    memory_bytes            device memory;  reserved_bytes: what is neither weights nor KV
    allreduce_fixed_s, allreduce_bytes_per_s   one all-reduce: latency, and bus bandwidth
    """

    name: str
    gemm_flops_per_s: float
    gemm_fixed_share: float
    lm_head_flops_per_s: float
    weight_bytes_per_s: float
    attention_flops_per_s: float
    kv_bytes_per_s: float
    decode_layer_fixed_s: float
    memory_bytes: float
    reserved_bytes: float
    allreduce_fixed_s: float = 0.0
    allreduce_bytes_per_s: float = float("inf")

    def shared_by(self, num_engines: int) -> HardwareSpec:
        """The rates left to each of some engines that run side by side."""
        return replace(
            self,
            gemm_flops_per_s=self.gemm_flops_per_s / num_engines,
            lm_head_flops_per_s=self.lm_head_flops_per_s / num_engines,
            weight_bytes_per_s=self.weight_bytes_per_s / num_engines,
            attention_flops_per_s=self.attention_flops_per_s / num_engines,
            kv_bytes_per_s=self.kv_bytes_per_s / num_engines,
        )


def a100_80gb() -> HardwareSpec:
    """The A100 as the paper measured it inside an engine: lines through its Table 1 (Llama-3-8B, batches of 512 to 1024)."""
    return HardwareSpec(
        name="a100-80gb",
        gemm_flops_per_s=243.3e12,
        gemm_fixed_share=0.6821,
        lm_head_flops_per_s=256e12,
        weight_bytes_per_s=1.793e12,
        attention_flops_per_s=200e12,
        kv_bytes_per_s=1.793e12,
        decode_layer_fixed_s=118e-6,
        memory_bytes=80e9,
        reserved_bytes=3.94e9,
        allreduce_fixed_s=6.238e-6,
        allreduce_bytes_per_s=164.5e9,
    )


def a100_80gb_kernels() -> HardwareSpec:
    """The A100 from single kernels (Vidur, aiconfigurator), with no engine around them."""
    return HardwareSpec(
        name="a100-80gb-kernels",
        gemm_flops_per_s=224.2e12,
        gemm_fixed_share=0.4657,
        lm_head_flops_per_s=287.6e12,
        weight_bytes_per_s=1.462e12,
        attention_flops_per_s=157e12,
        kv_bytes_per_s=1.637e12,
        decode_layer_fixed_s=28.7e-6,
        memory_bytes=80e9,
        reserved_bytes=3.94e9,
        allreduce_fixed_s=6.238e-6,
        allreduce_bytes_per_s=164.5e9,
    )


def h100() -> HardwareSpec:
    """GEMMs and all-reduce from Vidur; attention as the H200's, slowed by the ratio of memory bandwidths."""
    return HardwareSpec(
        name="h100",
        gemm_flops_per_s=780.3e12,
        gemm_fixed_share=0.6814,
        lm_head_flops_per_s=777.4e12,
        weight_bytes_per_s=2.395e12,
        attention_flops_per_s=605.2e12,
        kv_bytes_per_s=2.965e12,
        decode_layer_fixed_s=19.84e-6,
        memory_bytes=80e9,
        reserved_bytes=4e9,
        allreduce_fixed_s=23.98e-6,
        allreduce_bytes_per_s=330.1e9,
    )


def h200() -> HardwareSpec:
    """From single kernels (aiconfigurator)."""
    return HardwareSpec(
        name="h200",
        gemm_flops_per_s=802.2e12,
        gemm_fixed_share=0.2657,
        lm_head_flops_per_s=777.4e12,
        weight_bytes_per_s=3.432e12,
        attention_flops_per_s=605.2e12,
        kv_bytes_per_s=4.248e12,
        decode_layer_fixed_s=19.84e-6,
        memory_bytes=141e9,
        reserved_bytes=5e9,
        allreduce_fixed_s=5.42e-6,
        allreduce_bytes_per_s=289.2e9,
    )


def cpu(num_cores: int = 8, memory_bytes: float = 16e9) -> HardwareSpec:
    """A stated default, not a measurement: 25 GFLOP/s per core and 20 GB/s of memory bandwidth for the socket."""
    return HardwareSpec(
        name="cpu (assumed)",
        gemm_flops_per_s=25e9 * num_cores,
        gemm_fixed_share=0.1,
        lm_head_flops_per_s=25e9 * num_cores,
        weight_bytes_per_s=20e9,
        attention_flops_per_s=10e9 * num_cores,
        kv_bytes_per_s=10e9,
        decode_layer_fixed_s=100e-6,
        memory_bytes=memory_bytes,
        reserved_bytes=1e9,
    )


HARDWARE: dict[str, Callable[[], HardwareSpec]] = {
    "a100-80gb": a100_80gb,
    "a100-80gb-kernels": a100_80gb_kernels,
    "h100": h100,
    "h200": h200,
    "cpu": cpu,
}


def hardware_spec(name_or_path: str) -> HardwareSpec:
    """A preset by name, or a profile as ``infra/hardware/fit.py`` writes them. Raises ValueError for what is neither."""
    if name_or_path in HARDWARE:
        return HARDWARE[name_or_path]()
    path = Path(name_or_path)
    if not path.is_file():
        raise ValueError(f"hardware {name_or_path!r} is neither a preset ({', '.join(HARDWARE)}) nor a profile's JSON file")
    return HardwareSpec(**json.loads(path.read_text(encoding="utf-8"))["spec"])
