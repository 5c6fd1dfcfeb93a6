"""Plan: build the prefix tree, estimate output lengths from what was seen, order the requests and cut them into shards."""

from __future__ import annotations

import shutil
from time import perf_counter

from blendserve_core.data.length_hints import read_length_hints
from blendserve_core.job.attempts import remember_attempt
from blendserve_core.job.job import Job
from blendserve_core.job.length_report import SOURCES_FILE
from blendserve_core.job.observations import observe_outputs
from blendserve_core.job.remembered_lengths import recall_lengths
from blendserve_core.perf.engine_cost import engine_cost
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.lengths import estimate_lengths
from blendserve_core.plan.plan import Plan
from blendserve_core.plan.planner import make_plan
from blendserve_core.plan.tree import PrefixTree
from blendserve_core.requests import RequestTable
from schemas.manifest import LengthSources


def make_job_plan(job: Job) -> Plan:
    """The plan that the shards follow; kept from an earlier run unless that had other shards or another policy."""
    folder = job.workspace.plan
    earlier = Plan.load_if_whole(folder)
    asked_for = (job.parameters.policy, job.parameters.shards)
    if earlier is not None and (earlier.summary.policy, len(earlier.shards)) == asked_for:
        return earlier
    for shard in job.workspace.root.glob("shard-*"):
        remember_attempt(shard)
    shutil.rmtree(folder, ignore_errors=True)
    plan, sources = _plan_and_sources(job)
    sources.write(folder / SOURCES_FILE)
    plan.save(folder)
    return plan


def preview_plan(job: Job) -> Plan:
    """A plan from what is known now; where no output was ever seen, that is how long outputs are allowed to be."""
    return _plan_and_sources(job)[0]


def _plan_and_sources(job: Job) -> tuple[Plan, LengthSources]:
    requests = RequestTable.load(job.workspace.staged)
    tree, tree_s = prefix_tree(job, requests)
    parameters = job.parameters
    hints = read_length_hints(job.workspace.staged, requests, parameters)
    seen = observe_outputs(requests, job.workspace.engine_folders)
    remembered = recall_lengths(job, requests).without(seen.request)
    estimates = estimate_lengths(tree, requests, seen.joined_with(remembered), hints.group, hints.expected_output_tokens)
    cost = engine_cost(job.model_folder, parameters.dtype, parameters.engine, parameters.shards)
    plan = make_plan(
        requests, tree, estimates, cost, parameters.policy, parameters.shards, parameters.sampling.seed, tree_s=tree_s
    )
    is_stated = requests.sampling.ignore_eos | (hints.expected_output_tokens > 0)
    sources = LengthSources(num_stated=int(is_stated.sum()), num_seen=len(seen.request), num_remembered=len(remembered.request))
    return plan, sources


def prefix_tree(job: Job, requests: RequestTable) -> tuple[PrefixTree, float]:
    """The job's prefix tree and the seconds it took to build; the warm-up has saved it if there was one."""
    saved = Plan.load_if_whole(job.workspace.warm_up_plan)
    if saved is not None:
        return saved.tree, saved.summary.tree_s
    started = perf_counter()
    return build_tree(requests), perf_counter() - started
