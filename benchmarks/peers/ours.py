"""One workload on this repository's engine: planned here, then run by an engine process as a shard of a job is."""

from __future__ import annotations

import resource
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from peers.processes import Turn
from peers.workloads import Workload

from blendserve_core.data.parts import read_parts
from blendserve_core.perf.engine_cost import engine_cost
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.lengths import estimate_lengths
from blendserve_core.plan.planner import make_plan
from blendserve_core.requests import RequestTable
from blendserve_core.shard.supervise import run_engine
from blendserve_core.trace import read_split
from schemas.manifest import EngineManifest
from schemas.parameters import EngineOptions
from schemas.shard import EngineSpec

POLICY = "blend"


@dataclass(frozen=True)
class OwnRun:
    """The turn's seconds are planning and generating, rows written to disk included; the engine's start is told apart.

    ``split`` is where they went, if the run was to look: seconds by kind of the engine's steps.
    """

    turn: Turn
    manifest: EngineManifest
    split: dict[str, float]


def run_ours(workload: Workload, model_folder: Path, folder: Path, *, profile: bool = False) -> OwnRun:
    """Plan a workload and run it in a new engine process that writes into ``folder``, which is removed afterwards."""
    run = run_requests(workload.requests(), model_folder, folder, profile=profile)
    shutil.rmtree(folder)
    return run


def natural_lengths(workload: Workload, model_folder: Path, folder: Path) -> Workload:
    """The same prompts with as many tokens as the model writes for each, greedily, up to ``output_lens``."""
    if max(workload.output_lens) == 1:
        return workload
    run_requests(workload.requests(ignore_eos=False), model_folder, folder)
    lens = np.zeros(len(workload.prompts), dtype=np.int64)
    for batch in read_parts([folder / "shard"], ["row", "num_output_tokens"]):
        lens[batch.column("row").to_numpy()] = batch.column("num_output_tokens").to_numpy()
    return replace(workload, output_lens=lens.tolist())


def run_requests(requests: RequestTable, model_folder: Path, folder: Path, *, profile: bool = False) -> OwnRun:
    requests.save(folder / "staged")
    cpu_s, started = _children_cpu_s(), time.perf_counter()
    tree = build_tree(requests)
    cost = engine_cost(model_folder)
    make_plan(requests, tree, estimate_lengths(tree, requests), cost, POLICY).save(folder / "plan")
    planned_s = time.perf_counter() - started
    trace = folder / "profile.json" if profile else None
    manifest = run_engine(_spec(folder, model_folder, trace))
    turn = Turn(planned_s + manifest.generate_s, _children_cpu_s() - cpu_s)
    return OwnRun(turn, manifest, {} if trace is None else read_split(trace))


def _spec(folder: Path, model_folder: Path, trace: Path | None) -> EngineSpec:
    return EngineSpec(
        rank=0,
        staged_folder=str(folder / "staged"),
        plan_folder=str(folder / "plan"),
        output_folder=str(folder / "shard"),
        done_folders=[],
        model_folder=str(model_folder),
        policy=POLICY,
        dtype="bfloat16",
        seed=0,
        engine=EngineOptions(),
        profile=None if trace is None else str(trace),
    )


def _children_cpu_s() -> float:
    """Of processes that have ended; ours ends with every turn."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
