"""``blendserve simulate``: plan and run a workload on a cost model's clock, without an engine."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from blendserve_core.perf.cost import CostModel, Engine, num_devices_for
from blendserve_core.perf.hardware import hardware_spec
from blendserve_core.perf.presets import model_spec
from blendserve_core.plan.planner import Policy
from blendserve_core.sim.mix import PAPER_TRACES
from blendserve_core.sim.result import Simulation
from blendserve_core.sim.simulate import LengthKnowledge, Settings
from blendserve_core.sim.simulate import simulate as simulate_workload
from blendserve_core.sim.steps import StepRecorder
from blendserve_core.sim.workload import Workload, mixed_workload, read_workload
from flows.commands.options import Json

DEFAULT_REQUESTS = 40_000


def simulate(
    *,
    trace: Literal[1, 2, 3, 4] | None = None,
    requests: Path | None = None,
    num_requests: int | None = None,
    policy: Policy = "blend",
    engine: Engine = "overlapped",
    interference: float = 0.15,
    lengths: LengthKnowledge = "sampled",
    model: str = "llama-3-8b",
    hardware: str = "a100-80gb",
    tensor_parallel: int | None = None,
    shards: int = 1,
    seed: int = 0,
    max_step_tokens: int | None = None,
    cascade: bool = False,
    steps_out: Path | None = None,
    json: Json = False,
) -> None:
    """Simulate a batch job: the real planner, scheduler and policies, with seconds from a cost model.

    Parameters
    ----------
    trace
        One of the paper's mixes: density 1.4 or 0.9, with 35 % of prompt tokens shared (1, 2) or 5 % (3, 4).
    requests
        Instead of a trace: Parquet with output_tokens and prompt_token_ids or input_tokens (and maybe prefix_group and
        shared_prefix_tokens).
    num_requests
        Requests to simulate; of a file, so many rows drawn at random. Default: 40000 of a trace, a file as it is.
    interference
        Share of the shorter resource's time that an overlapped engine still shows; 0.35 is the paper's engine.
    lengths
        What the planner knows of output lengths: a generated sample, or the truth.
    model
        A preset such as llama-3-8b, or a folder with a config.json.
    hardware
        A preset such as a100-80gb, or a profile's JSON file.
    tensor_parallel
        Devices that share each layer. Default: the fewest that leave most of their memory to KV.
    max_step_tokens
        Token budget of a step, the chunk size of prefill. Default: 2048, or 8192 for blend, which sizes its steps itself.
    cascade
        Whether decodes read a shared prefix once for all of them.
    steps_out
        File for one row per step, Parquet or CSV.
    """
    device = hardware_spec(hardware)
    spec = model_spec(model)
    spec = spec.with_tensor_parallel(tensor_parallel or num_devices_for(spec, device))
    cost = CostModel(spec, device, engine, interference, cascade)
    settings = Settings(policy=policy, lengths=lengths, num_shards=shards, seed=seed, max_step_tokens=max_step_tokens)
    if steps_out and not steps_out.parent.is_dir():
        raise ValueError(f"--steps-out {steps_out} lies in no folder that exists; make {steps_out.parent} first")
    recorder = StepRecorder() if steps_out else None
    result = simulate_workload(_workload(trace, requests, num_requests, cost, seed), cost, settings, recorder)
    if recorder and steps_out:
        recorder.save(steps_out)
    print(json_module.dumps(asdict(result), indent=2) if json else _describe(result))


def _workload(trace: int | None, requests: Path | None, num_requests: int | None, cost: CostModel, seed: int) -> Workload:
    if (trace is None) == (requests is None):
        raise ValueError("give either --trace 1..4 or --requests FILE")
    if num_requests is not None and num_requests < 1:
        raise ValueError(f"--num-requests is {num_requests}; use at least 1")
    if trace is not None:
        return mixed_workload(PAPER_TRACES[trace], num_requests or DEFAULT_REQUESTS, cost, seed)
    assert requests is not None
    if not requests.is_file():
        raise ValueError(f"--requests {requests} is not a file")
    return read_workload(requests, num_requests, seed)


def _describe(result: Simulation) -> str:
    return "\n".join(
        [
            f"{result.num_requests:,} requests, {result.total_tokens:,} tokens in {result.seconds:,.0f} s: "
            f"{result.tokens_per_s:,.0f} tokens/s",
            f"  practical optimum {result.t_practical_optimum_s:,.0f} s, {result.fraction_of_practical_optimum:.1%} of it",
            f"  reachable         {result.t_reachable_s:,.0f} s, {result.fraction_of_reachable:.1%} of it",
            f"  prompt tokens found in the cache {result.sharing_ratio:.1%}, at most {result.max_sharing_ratio:.1%}",
            f"  {result.num_steps:,} steps, compute {result.tc_s:,.0f} s, memory {result.tm_s:,.0f} s, "
            f"{result.num_retractions:,} retractions, {result.num_recomputed_tokens:,} tokens recomputed",
            f"  scheduling {result.schedule_ms_mean:.3f} ms a step, 99th percentile {result.schedule_ms_p99:.3f} ms",
        ]
    )
