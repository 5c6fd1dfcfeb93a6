"""Steps that were checked once and must stay: which rows run, how many tokens they take, which pages they read.

``python tests/schedule/test_golden_steps.py`` writes them anew, for a change that is meant to change them.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from checking_executor import CheckingExecutor
from request_tables import request_table

from blendserve_core.kv.segments import shared_segments
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.schedule.policies.ordered import OrderedAdmission
from blendserve_core.schedule.scheduler import Scheduler
from blendserve_core.schedule.step import Capacity, StepPlan

GOLDEN = Path(__file__).parents[1] / "golden" / "steps.json"
TRUNK = list(range(22))
SHARED = [[*TRUNK[:cut], 30 + i, *range(i)] for i, cut in enumerate([22, 22, 10, 22, 10, 5])]
ALONE = [[40 + i, *range(8)] for i in range(5)]
WORKLOADS = {
    "sharing and tails": (SHARED, [3, 2, 4, 2, 1, 3], [0, 1, 3, 2, 4, 5], Capacity(40, 4, 24, 4, 64)),
    "eviction": (SHARED + ALONE, [2] * 11, [0, 6, 2, 7, 5, 8, 1, 9, 3, 10, 4], Capacity(10, 4, 16, 3, 40)),
    "retraction": (ALONE, [12] * 5, [4, 3, 2, 1, 0], Capacity(9, 4, 16, 4, 36)),
}


def steps_of(workload: str) -> list[dict[str, list[int]]]:
    prompts, max_tokens, order, capacity = WORKLOADS[workload]
    requests, planned = request_table(prompts, max_tokens), np.array(order)
    tree = build_tree(requests)
    segments = shared_segments(tree, planned, capacity.page_size)
    scheduler = Scheduler(requests, planned, segments, tree.request_order, OrderedAdmission(planned), capacity, ())
    executor = CheckingExecutor(capacity)
    while (step := scheduler.schedule()) is not None:
        scheduler.update(executor.execute(step))
    return [_as_lists(step) for step in executor.steps]


def _as_lists(step: StepPlan) -> dict[str, list[int]]:
    return {name: np.asarray(getattr(step, name)).astype(int).tolist() for name in StepPlan.__slots__}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_steps_are_the_golden_ones(workload):
    assert steps_of(workload) == json.loads(GOLDEN.read_text())[workload]


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, steps_of(name))) + "\n]" for name in WORKLOADS]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
