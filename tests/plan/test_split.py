import numpy as np
import pytest
from planning import mixed_families, workload_of

from blendserve_core.plan.node_costs import node_costs
from blendserve_core.plan.split import GROUP_WIDTH, node_densities, split_tree


def split_of(prompts, outputs, keep_sharing=0.99):
    workload, _ = workload_of(prompts, outputs)
    costs = node_costs(workload)
    return split_tree(workload.tree, costs, workload.num_prompt_tokens, keep_sharing), workload.tree, costs


def cheapest_split_tokens(tree, node):
    """The least that any split of ``node`` loses: two groups compute its path, and it leaves its own group."""
    return tree.end_depth[node] + (tree.end_depth[tree.parent[node]] if node else 0)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("keep_sharing", [0.5, 0.9, 0.99])
def test_every_further_split_would_exceed_what_is_left_of_the_budget(seed, keep_sharing):
    rng = np.random.default_rng(seed)
    prompts = [[family, *[family] * 30, i % 4, i] for family in range(12) for i in range(16)]
    split, tree, costs = split_of(prompts, rng.choice([2, 50, 3000], len(prompts)), keep_sharing)
    nodes = node_densities(tree, costs)
    is_unlike = nodes.highest - nodes.lowest > GROUP_WIDTH
    is_frontier = ~split.is_open & np.array([node == 0 or split.is_open[tree.parent[node]] for node in range(tree.num_nodes)])
    left = split.budget_tokens - split.lost_tokens
    assert left >= 0
    assert all(cheapest_split_tokens(tree, node) > left for node in np.flatnonzero(is_unlike & is_frontier))


def test_subtrees_of_like_density_stay_whole():
    split, tree, _ = split_of([[1] * 50 + [i] for i in range(40)], [7] * 40)
    assert not split.is_open.any()
    assert len(set(split.unit_key.tolist())) == 1
    assert tree.num_nodes > 40


def test_outliers_leave_their_subtree_where_the_budget_allows():
    prompts, outputs = [[1] * 20 + [i] for i in range(300)], [2] * 290 + [5000] * 10
    split, tree, _ = split_of(prompts, outputs)
    unit = split.unit_key[tree.node_of_request]
    assert len(set(unit[:290].tolist())) == len(set(unit[290:].tolist())) == 1
    assert unit[0] != unit[290]
    assert split.lost_tokens == 20


def test_nothing_is_split_without_a_budget():
    split, _, _ = split_of([[1] * 20 + [i] for i in range(300)], [2] * 290 + [5000] * 10, keep_sharing=1.0)
    assert split.lost_tokens == 0
    assert not split.is_open[1]


def test_siblings_of_like_density_under_the_root_merge_into_one_unit():
    split, tree, _ = split_of([[family, i] for family in range(10) for i in range(5)] + [[99, 1]], [10] * 50 + [9000])
    unit = split.unit_key[tree.node_of_request]
    assert len(set(unit[:50].tolist())) == 1
    assert unit[50] != unit[0]


def test_splits_open_from_the_root_down():
    split, tree, _ = split_of(*mixed_families())
    opened = np.flatnonzero(split.is_open)
    assert split.is_open[0]
    assert split.is_open[tree.parent[opened[opened > 0]]].all()
