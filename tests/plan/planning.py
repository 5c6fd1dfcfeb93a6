"""A small job's workload for the planner's tests: a few families of opposite resource demand, with known lengths."""

import itertools
from dataclasses import replace

import numpy as np
from plan_tables import table_of

from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.hardware import a100_80gb
from blendserve_core.perf.presets import llama_3_8b
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.lengths import estimate_lengths
from blendserve_core.plan.workload import Workload

COST = CostModel(llama_3_8b(), a100_80gb())


def workload_of(prompts, outputs, **columns):
    """(workload, request table) of requests with these output lengths, known to the planner."""
    table = table_of(prompts, max_tokens=1_000_000, **columns)
    tree = build_tree(table)
    estimates = estimate_lengths(tree, table, expected_output_tokens=np.asarray(outputs, float))
    return Workload(tree, table.num_prompt_tokens, table.sampling.max_tokens, estimates, COST), table


def with_cascade(workload):
    """The same workload on an engine that reads shared prefixes once."""
    return replace(workload, cost=replace(workload.cost, cascade=True))


def mixed_families(size=40, seed=0):
    """Prompts and outputs: chats of all lengths, two few-shot tasks with two output tokens, and a few giants."""
    rng = np.random.default_rng(seed)
    chats = [[1, 1, *rng.integers(10, 1000, rng.integers(20, 60)).tolist()] for _ in range(size)]
    tasks = [[2, task, *[task] * 80, *rng.integers(10, 1000, 10).tolist()] for task in (3, 4) for _ in range(size)]
    giants = [[5, 5, *rng.integers(10, 1000, 10).tolist()] for _ in range(size // 8)]
    outputs = [*rng.integers(50, 300, size), *[2] * (2 * size), *[20_000] * (size // 8)]
    order = rng.permutation(len(outputs))
    prompts = chats + tasks + giants
    return [prompts[i] for i in order], [int(outputs[i]) for i in order]


def opposite_halves():
    """Prompts and outputs that take about as much compute as memory time: long prompts first, then long outputs."""
    long_prompts = [[1, 2, 3, i, *range(1000, 3000)] for i in range(600)]
    return long_prompts + [[4, 5, i] for i in range(40)], [2] * 600 + [8000] * 40


def naive_shared_tokens(prompts, order):
    """Tokens saved by a cache that keeps the last prompt only, counted token by token."""
    total = 0
    for before, after in itertools.pairwise(order):
        for a, b in zip(prompts[before], prompts[after], strict=False):
            if a != b:
                break
            total += 1
    return total
