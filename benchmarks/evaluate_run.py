"""Runs cases in processes and keeps each result as a line of JSON, so that an evaluation can be stopped and gone on with."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from evaluate_cases import Case

from blendserve_core.perf.cost import CostModel, num_devices_for
from blendserve_core.perf.hardware import a100_80gb
from blendserve_core.perf.presets import model_spec
from blendserve_core.sim.lengths import openvid_like
from blendserve_core.sim.mix import MixTarget
from blendserve_core.sim.request_file import length_source
from blendserve_core.sim.simulate import Settings, simulate
from blendserve_core.sim.steps import StepRecorder
from blendserve_core.sim.workload import mixed_workload

NUM_BINS = 120
Row = dict[str, Any]


def run_all(cases: list[Case], path: Path, num_processes: int) -> list[Row]:
    """Results of all cases in their order; those already in ``path`` are not run again."""
    done = {_key(row["case"]): row for row in map(json.loads, path.read_text().splitlines())} if path.exists() else {}
    missing = [case for case in cases if _key(asdict(case)) not in done]
    with ProcessPoolExecutor(num_processes) as pool, path.open("a", encoding="utf-8") as out:
        for number, future in enumerate(as_completed([pool.submit(run_case, case) for case in missing]), start=1):
            row = future.result()
            done[_key(row["case"])] = row
            out.write(json.dumps(row) + "\n")
            out.flush()
            print(f"{number}/{len(missing)} {_line(row)}", file=sys.stderr, flush=True)
    return [done[_key(asdict(case))] for case in cases]


def run_case(case: Case) -> Row:
    """Simulate one case: {"case", "result", and with steps kept "use" over time and "loss"}."""
    spec, device = model_spec(case.model), a100_80gb()
    spec = spec.with_tensor_parallel(num_devices_for(spec, device))
    cost = CostModel(spec, device, case.engine, case.interference)  # pyright: ignore[reportArgumentType]
    workload = mixed_workload(
        MixTarget(case.density, case.sharing),
        case.num_requests,
        cost,
        case.seed,
        compute_heavy=length_source(case.compute_heavy),
        long_output=partial(openvid_like, mean_output=case.mean_output),
    )
    settings = Settings(
        policy=case.policy,
        lengths=case.lengths,  # pyright: ignore[reportArgumentType]
        num_shards=case.num_shards,
        seed=case.seed,
        max_step_tokens=case.max_step_tokens,
    )
    recorder = StepRecorder() if case.keep_steps else None
    result = simulate(workload, cost, settings, recorder)
    row: Row = {"case": asdict(case), "result": asdict(result)}
    if recorder is not None:
        row["use"] = resource_use(recorder)
        row["loss"] = loss_split(recorder, cost, result.t_reachable_s, result.num_recomputed_tokens)
    return row


def resource_use(recorder: StepRecorder) -> dict[str, list[float]]:
    """Shares of time that compute and memory are busy, in equal slices of the run."""
    seconds = recorder.column("seconds")
    end = np.cumsum(seconds)
    slices = np.minimum((end / end[-1] * NUM_BINS).astype(int), NUM_BINS - 1)
    total = np.maximum(np.bincount(slices, seconds, NUM_BINS), 1e-12)
    busy = {name: np.bincount(slices, recorder.column(name), NUM_BINS) / total for name in ("tc_s", "tm_s")}
    return {name: np.round(np.minimum(share, 1), 4).tolist() for name, share in busy.items()}


def loss_split(recorder: StepRecorder, cost: CostModel, reachable_s: float, num_recomputed_tokens: int) -> dict[str, float]:
    """Where the seconds beyond T_reach went; the parts add up exactly.

    A step loses what it takes beyond its share of ``combine(sum of Tc, sum of Tm)``: its bottleneck was not the run's. Those
    losses are split into ramp (before KV first fills to 90 %), tail (after the last prompt token) and what lies between.
    """
    seconds, tc_s, tm_s = (recorder.column(name) for name in ("seconds", "tc_s", "tm_s"))
    held, prefill = recorder.column("kv_tokens_held"), recorder.column("num_prefill_tokens")
    balanced_s = float(cost.combine(tc_s.sum(), tm_s.sum()))
    shorter = 1.0 if cost.engine == "sequential" else cost.interference
    weights = (1.0, shorter) if tc_s.sum() >= tm_s.sum() else (shorter, 1.0)
    lost_s = seconds - weights[0] * tc_s - weights[1] * tm_s
    full = np.flatnonzero(held >= 0.9 * cost.kv_capacity_tokens)
    ramp_end = int(full[0]) if len(full) else 0
    tail_start = int(np.flatnonzero(prefill)[-1]) + 1
    recomputation_s = cost.gemm_token_s * num_recomputed_tokens
    return {
        "ramp": float(lost_s[:ramp_end].sum()),
        "wrong_bottleneck": float(lost_s[ramp_end:tail_start].sum()),
        "tail": float(lost_s[max(ramp_end, tail_start) :].sum()),
        "recomputation": recomputation_s,
        "step_constants": balanced_s - reachable_s - recomputation_s,
    }


def _key(case: Row) -> str:
    return json.dumps(case, sort_keys=True)


def _line(row: Row) -> str:
    case, result = row["case"], row["result"]
    return (
        f"{case['group']} {case['label']} {case['policy']} {case['engine']} {case['lengths']}: "
        f"{result['tokens_per_s']:.0f} tokens/s, {result['fraction_of_reachable']:.1%} of reachable, "
        f"{result['simulation_s']:.0f} s"
    )
