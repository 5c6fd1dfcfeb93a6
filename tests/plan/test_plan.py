import json
from dataclasses import fields

import numpy as np
import pytest
from planning import COST, mixed_families, workload_of

from blendserve_core.plan.plan import SUMMARY_FILE, Plan
from blendserve_core.plan.planner import make_plan


def small_plan(policy="blend", num_shards=3):
    workload, table = workload_of(*mixed_families(size=16))
    return make_plan(table, workload.tree, workload.estimates, COST, policy, num_shards)


def assert_equal_fields(loaded, original):
    for field in fields(original):
        value, other = getattr(original, field.name), getattr(loaded, field.name)
        assert np.array_equal(value, other), field.name
        assert getattr(value, "dtype", None) == getattr(other, "dtype", None), field.name


@pytest.mark.parametrize("policy", ["first-come", "depth-first", "random", "blend-paper", "blend"])
def test_a_saved_plan_is_loaded_bit_for_bit(policy, tmp_path):
    plan = small_plan(policy)
    plan.save(tmp_path)
    loaded = Plan.load(tmp_path)
    assert loaded.summary == plan.summary
    assert_equal_fields(loaded.tree, plan.tree)
    assert_equal_fields(loaded.estimates, plan.estimates)
    assert len(loaded.shards) == len(plan.shards)
    for shard, original in zip(loaded.shards, plan.shards, strict=True):
        assert_equal_fields(shard, original)


def test_the_summary_on_disk_is_what_the_plan_says_of_itself(tmp_path):
    plan = small_plan()
    plan.save(tmp_path)
    on_disk = json.loads((tmp_path / SUMMARY_FILE).read_text(encoding="utf-8"))
    assert on_disk == json.loads(json.dumps(plan.as_dict()))
    assert set(on_disk) >= {
        "num_requests",
        "num_tokens",
        "unique_tokens",
        "sharing_ratio",
        "max_sharing_ratio",
        "density",
        "shards",
        "plan_s",
        "tree_s",
    }
    assert all(set(shard) >= {"tc_s", "tm_s", "predicted_s"} for shard in on_disk["shards"])
