"""Runs cases in processes and keeps each result as a line of JSON, so that an evaluation can be stopped and gone on with."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from evaluate_cases import Case, steps_key
from evaluate_loss import loss_split, resource_use

import blendserve_core
from blendserve_core.perf.cost import CostModel, num_devices_for
from blendserve_core.perf.hardware import a100_80gb
from blendserve_core.perf.presets import model_spec
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.sim.lengths import LONGEST_VIDEO, openvid_like
from blendserve_core.sim.mix import MixTarget
from blendserve_core.sim.request_file import length_source
from blendserve_core.sim.result import Simulation, retimed
from blendserve_core.sim.simulate import Settings, simulate
from blendserve_core.sim.steps import StepRecorder
from blendserve_core.sim.workload import Workload, mixed_workload

Row = dict[str, Any]
WHAT_COUNTS = ("plan", "schedule", "kv", "sim", "perf")
"""Folders of blendserve_core that a result depends on."""


def run_all(cases: Iterable[Case], path: Path, num_processes: int, deadline: float = float("inf")) -> list[Row]:
    """Results of the cases in their order; those that this code has in ``path`` already are not run again.

    Past ``deadline`` (of ``time.monotonic``) no further case is begun. The results lack what was not run, and what cannot be.
    """
    cases, code = list(cases), code_digest()
    done = {_key(row["case"]): row for row in _read(path) if row["code"] == code}
    missing = [case for case in cases if _key(asdict(case)) not in done]
    with path.open("a", encoding="utf-8") as out:
        for number, row in enumerate(_run(missing, num_processes, deadline), start=1):
            done[_key(row["case"])] = row
            out.write(json.dumps(row | {"code": code}) + "\n")
            out.flush()
            print(f"{number}/{len(missing)} {_line(row)}", file=sys.stderr, flush=True)
    return [done[key] for case in cases if (key := _key(asdict(case))) in done]


def _run(cases: list[Case], num_processes: int, deadline: float) -> Iterable[Row]:
    """Results as they come; cases are handed out only when a process is free, those with the same steps together."""
    together: dict[Case, list[Case]] = {}
    for case in cases:
        together.setdefault(steps_key(case), []).append(case)
    waiting = iter(together.values())
    with ProcessPoolExecutor(num_processes) as pool:
        running: set[Future[list[Row]]] = set()
        while True:
            while len(running) < num_processes and time.monotonic() < deadline and (same := next(waiting, None)):
                running.add(pool.submit(run_cases, same))
            if not running:
                return
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                try:
                    yield from future.result()
                except ValueError as error:
                    print(f"a case cannot be run: {error}", file=sys.stderr, flush=True)


def run_case(case: Case) -> Row:
    """Simulate one case: {"case", "result", and with steps kept "use" over time and "loss"}."""
    return run_cases([case])[0]


def run_cases(cases: list[Case]) -> list[Row]:
    """Simulate the first of some cases that take the same steps, and time its steps as each of the others would."""
    first, cost = cases[0], _cost(cases[0])
    workload = workload_of(first)
    recorder = StepRecorder() if first.keep_steps or len(cases) > 1 else None
    settings = Settings(
        policy=first.policy,
        lengths=first.lengths,  # pyright: ignore[reportArgumentType]
        num_shards=first.num_shards,
        seed=first.seed,
        max_step_tokens=first.max_step_tokens,
    )
    result = simulate(workload, cost, settings, recorder)
    rows = [_row(first, workload, cost, result, recorder)]
    for case in cases[1:]:
        assert recorder is not None
        other = recorder.timed_by(_cost(case))
        rows.append(_row(case, workload, _cost(case), retimed(result, workload, _cost(case), other), other))
    return rows


def _cost(case: Case) -> CostModel:
    spec, device = model_spec(case.model), a100_80gb()
    spec = spec.with_tensor_parallel(num_devices_for(spec, device))
    return CostModel(spec, device, case.engine, case.interference)  # pyright: ignore[reportArgumentType]


def workload_of(case: Case) -> Workload:
    """The requests of a case. Raises ValueError where no mix of its traces has the density and sharing asked for."""
    cost = _cost(case)
    # An output must fit into the KV memory, twice over, or it would be a run of its own.
    mean_output = min(case.mean_output, cost.kv_capacity_tokens // (2 * LONGEST_VIDEO))
    return mixed_workload(
        MixTarget(case.density, case.sharing),
        case.num_requests,
        cost,
        case.seed,
        compute_heavy=length_source(case.compute_heavy),
        long_output=partial(openvid_like, mean_output=mean_output),
        max_tokens=LONGEST_VIDEO * mean_output,
    )


def _row(case: Case, workload: Workload, cost: CostModel, result: Simulation, recorder: StepRecorder | None) -> Row:
    devices = cost.model.tensor_parallel
    row: Row = {"case": asdict(case), "result": asdict(result), "devices": devices, "mix": _mix(workload, cost)}
    if recorder is not None and case.keep_steps:
        row["use"] = resource_use(recorder)
        row["loss"] = loss_split(recorder, cost, result.t_reachable_s, result.num_recomputed_tokens)
    return row


def _mix(workload: Workload, cost: CostModel) -> dict[str, float]:
    """What the workload turned out to be; its density is that of the requests' own times, shared prefixes computed once."""
    prompts, outputs = workload.requests.num_prompt_tokens, workload.true_output_tokens
    tree = build_tree(workload.requests)
    compute_s = cost.compute_s(tree.end_depth, 0, tree.start_depth).sum() + cost.compute_s(prompts, outputs, prompts).sum()
    return {
        "density": float(compute_s / cost.memory_s(prompts, outputs).sum()),
        "longest_output": int(outputs.max()),
        "mean_prompt_tokens": float(prompts.mean()),
        "mean_output_tokens": float(outputs.mean()),
    }


def best_chunks(rows: list[Row]) -> dict[tuple[str, str, str], int]:
    """The chunk size with the highest throughput for each (trace, engine, policy)."""
    best: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        case = row["case"]
        key = (case["label"], case["engine"], case["policy"])
        if key not in best or row["result"]["tokens_per_s"] > best[key]["result"]["tokens_per_s"]:
            best[key] = row
    return {key: row["case"]["max_step_tokens"] for key, row in best.items()}


def code_digest() -> str:
    """Of all that a result depends on, so that results of other code are not taken for this code's."""
    root = Path(next(iter(blendserve_core.__path__)))
    paths = [path for folder in WHAT_COUNTS for path in (root / folder).rglob("*.py")]
    return sha256(b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()[:12]


def _read(path: Path) -> list[Row]:
    """Whole lines only: a run that was killed may have left half of one, which is cut off."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole_lines = content[: content.rfind(b"\n") + 1]
    if len(whole_lines) < len(content):
        path.write_bytes(whole_lines)
    return [json.loads(line) for line in whole_lines.splitlines()]


def _key(case: Row) -> str:
    return json.dumps(case, sort_keys=True)


def _line(row: Row) -> str:
    case, result = row["case"], row["result"]
    return (
        f"{case['group']} {case['label']} {case['policy']} {case['engine']} {case['lengths']} seed {case['seed']} "
        f"chunk {case['max_step_tokens']}: {result['tokens_per_s']:.0f} tokens/s, {result['fraction_of_reachable']:.1%} "
        f"of reachable, {result['simulation_s']:.0f} s"
    )
