"""What one device can do, as the few measured rates the cost model needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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


def a100_80gb() -> HardwareSpec:
    """Slopes and intercepts of the measured times in the paper's Table 1 (Llama-3-8B, batches of 512 to 1024)."""
    return HardwareSpec(
        name="a100-80gb",
        gemm_flops_per_s=243.2e12,
        gemm_fixed_share=0.681,
        lm_head_flops_per_s=256e12,
        weight_bytes_per_s=1.79e12,
        attention_flops_per_s=200e12,
        kv_bytes_per_s=1.793e12,
        decode_layer_fixed_s=118.1e-6,
        memory_bytes=80e9,
        reserved_bytes=3.94e9,
        allreduce_fixed_s=20e-6,
        allreduce_bytes_per_s=230e9,
    )


def h100() -> HardwareSpec:
    """Data-sheet peaks of the SXM part times the shares of peak that Table 1 shows for the A100."""
    return HardwareSpec(
        name="h100",
        gemm_flops_per_s=680e12,
        gemm_fixed_share=0.681,
        lm_head_flops_per_s=720e12,
        weight_bytes_per_s=2.95e12,
        attention_flops_per_s=560e12,
        kv_bytes_per_s=2.95e12,
        decode_layer_fixed_s=60e-6,
        memory_bytes=80e9,
        reserved_bytes=4e9,
        allreduce_fixed_s=15e-6,
        allreduce_bytes_per_s=360e9,
    )


def h200() -> HardwareSpec:
    """As the H100, with the larger and faster memory."""
    return HardwareSpec(
        name="h200",
        gemm_flops_per_s=680e12,
        gemm_fixed_share=0.681,
        lm_head_flops_per_s=720e12,
        weight_bytes_per_s=4.2e12,
        attention_flops_per_s=560e12,
        kv_bytes_per_s=4.2e12,
        decode_layer_fixed_s=60e-6,
        memory_bytes=141e9,
        reserved_bytes=5e9,
        allreduce_fixed_s=15e-6,
        allreduce_bytes_per_s=360e9,
    )


def cpu(num_cores: int = 8, memory_bytes: float = 16e9) -> HardwareSpec:
    """A stated default, not a measurement: 25 GFLOP/s per core and 20 GB/s of memory bandwidth for the socket."""
    return HardwareSpec(
        name="cpu",
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


HARDWARE: dict[str, Callable[[], HardwareSpec]] = {"a100-80gb": a100_80gb, "h100": h100, "h200": h200, "cpu": cpu}


def hardware_spec(name: str) -> HardwareSpec:
    """A preset by name. Raises ValueError for an unknown one."""
    if name not in HARDWARE:
        raise ValueError(f"hardware {name!r} is not known; use one of {', '.join(HARDWARE)}")
    return HARDWARE[name]()
