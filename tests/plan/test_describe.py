import numpy as np
from plan_tables import table_of
from planning import COST, mixed_families

from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.describe import describe, duration
from blendserve_core.plan.lengths import estimate_lengths
from blendserve_core.plan.planner import make_plan


def test_a_plan_tells_what_a_person_asks_before_taking_a_gpu():
    prompts, outputs = mixed_families(size=400)
    table = table_of(prompts, max_tokens=100_000)
    tree = build_tree(table)
    plan = make_plan(table, tree, estimate_lengths(tree, table, expected_output_tokens=np.array(outputs)), COST, "blend", 2)
    text = describe(plan)
    for label in (
        "requests        1,250",
        "sharing",
        "density",
        "GPU-hours",
        "hardware        a100-80gb",
        "of the practical optimum",
        "slowest shard",
    ):
        assert label in text
    rows = [line for line in text.splitlines() if " - " in line]
    assert sum(int(row.split()[-1].replace(",", "")) for row in rows) == 1250
    assert max(row.count("#") for row in rows) == 40


def test_durations_take_the_unit_that_reads_best():
    assert [duration(seconds) for seconds in (2.34, 90, 5400)] == ["2.3 s", "1.5 min", "1.5 h"]
