"""Warm up: generate a small sample first, so that the plan knows how long outputs are. Its rows are results like any other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from blendserve_core.data.length_hints import LengthHints, read_length_hints
from blendserve_core.job.generation import OnProgress, run_engine_once
from blendserve_core.job.job import Job
from blendserve_core.job.planning import prefix_tree
from blendserve_core.job.remembered_lengths import recall_lengths
from blendserve_core.perf.engine_cost import engine_cost
from blendserve_core.plan.lengths import estimate_lengths
from blendserve_core.plan.plan import Plan, Shard
from blendserve_core.plan.planner import make_plan
from blendserve_core.plan.sample import choose_sample
from blendserve_core.plan.tree import PrefixTree
from blendserve_core.requests import RequestTable
from schemas.manifest import EngineManifest

# The few longest outputs would take most of a warm-up's time: they are finished in the main run instead.
SHARE_WAITED_FOR = 0.9


def warm_up(job: Job, on_progress: OnProgress | None = None) -> EngineManifest | None:
    """Generate the sample, unless an earlier run did. None where there is nothing to sample, or lengths are known already."""
    workspace = job.workspace
    plan = Plan.load_if_whole(workspace.warm_up_plan)
    if plan is None:
        plan = _sample_plan(job)
        plan.save(workspace.warm_up_plan)
    sample = plan.shards[0]
    if sample.num_requests == 0:
        return None
    enough = max(1, int(SHARE_WAITED_FOR * sample.num_requests))
    return run_engine_once(
        job, 0, workspace.warm_up_plan, workspace.warm_up, on_progress, policy="depth-first", stop_at_finished=enough
    )


def _sample_plan(job: Job) -> Plan:
    """A plan of the whole job whose one shard is the sample, in the tree's order."""
    requests = RequestTable.load(job.workspace.staged)
    tree, tree_s = prefix_tree(job, requests)
    hints = read_length_hints(job.workspace.staged, requests, job.parameters)
    sample = _sample(job, requests, tree, hints)
    estimates = estimate_lengths(tree, requests, expected_output_tokens=hints.expected_output_tokens)
    cost = engine_cost(job.model_folder, job.parameters.dtype, job.parameters.engine)
    whole = make_plan(requests, tree, estimates, cost, "depth-first", tree_s=tree_s)
    order = tree.request_order[np.isin(tree.request_order, sample)]
    return replace(whole, shards=(_shard(order),))


def _sample(job: Job, requests: RequestTable, tree: PrefixTree, hints: LengthHints) -> NDArray[np.int64]:
    """The requests to generate first; none where an earlier job left at least as many outputs."""
    fraction, seed = job.parameters.sample_fraction, job.parameters.sampling.seed
    sample = choose_sample(tree, requests, fraction, seed, hints.group, hints.expected_output_tokens)
    num_remembered = len(recall_lengths(job, requests).request)
    return sample if num_remembered < len(sample) else sample[:0]


def _shard(order: NDArray[np.int64]) -> Shard:
    """One unit per request; nobody asks how long a warm-up is predicted to take."""
    unit_indptr, package = np.arange(len(order) + 1), np.zeros(len(order), dtype=np.int32)
    return Shard(0, order, unit_indptr, package, tc_s=0.0, tm_s=0.0, predicted_s=0.0)
