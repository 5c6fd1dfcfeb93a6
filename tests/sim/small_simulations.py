"""What tests of whole simulations share: policies, a small KV pool, and results without what depends on the machine."""

from dataclasses import asdict, replace

from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.hardware import a100_80gb
from blendserve_core.perf.presets import llama_3_8b

POLICIES = ["first-come", "depth-first", "random", "blend-paper", "blend"]
CLOCKS = {"schedule_ms_mean", "schedule_ms_p99", "tree_s", "plan_s", "simulation_s"}


def short_of_memory() -> CostModel:
    """Llama-3-8B on an A100 with room for 6,000 tokens of KV, so that memory is short."""
    roomy = CostModel(llama_3_8b(), a100_80gb())
    spare_bytes = (roomy.kv_capacity_tokens - 6_000) * roomy.model.kv_bytes_per_token
    return CostModel(roomy.model, replace(a100_80gb(), memory_bytes=80e9 - spare_bytes))


def without_clocks(result):
    return {name: value for name, value in asdict(result).items() if name not in CLOCKS}
