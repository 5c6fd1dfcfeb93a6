import itertools

import numpy as np
import pytest
from planning import COST, mixed_families, with_cascade, workload_of

from blendserve_core.plan.node_costs import node_costs


def naive_cost(prompts, outputs):
    """(compute, memory) seconds of these requests with every shared prefix computed once."""
    prefixes = {tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt) + 1)}
    compute_s = sum(COST.compute_s(len(prefix), 0, len(prefix) - 1) for prefix in prefixes)
    compute_s += sum(COST.compute_s(len(p), d, len(p)) for p, d in zip(prompts, outputs, strict=True))
    return compute_s, sum(COST.memory_s(len(p), d) for p, d in zip(prompts, outputs, strict=True))


def test_a_nodes_density_is_that_of_its_requests_with_the_path_computed_once():
    prompts, outputs = mixed_families(size=8)
    workload, _ = workload_of(prompts, outputs)
    costs, tree = node_costs(workload), workload.tree
    for node in range(tree.num_nodes):
        below = tree.request_order[tree.request_start[node] : tree.request_end[node]]
        compute_s, memory_s = naive_cost([prompts[r] for r in below], [outputs[r] for r in below])
        assert costs.density[node] == pytest.approx(compute_s / memory_s, rel=1e-6)


def test_a_node_is_its_own_segment_its_own_requests_and_its_children():
    workload, _ = workload_of(*mixed_families(size=8))
    costs, tree = node_costs(workload), workload.tree
    own = np.bincount(tree.node_of_request, weights=costs.decode_s, minlength=tree.num_nodes)
    for node in range(tree.num_nodes):
        children = tree.parent == node
        assert costs.subtree_s[node] == pytest.approx(costs.segment_s[node] + own[node] + costs.subtree_s[children].sum())
        memory_s = costs.memory_s[tree.node_of_request == node].sum() + costs.subtree_memory_s[children].sum()
        assert costs.subtree_memory_s[node] == pytest.approx(memory_s)


def test_sharing_lowers_density():
    stem = list(range(100))
    shared, _ = workload_of([[*stem, i] for i in range(200, 210)], [50] * 10)
    apart, _ = workload_of([[i, *stem] for i in range(200, 210)], [50] * 10)
    assert node_costs(shared).density[0] < 0.7 * node_costs(apart).density[0]


def family(num_requests, num_outputs=300):
    """Requests with a system prompt of 3,000 tokens and a word each of their own."""
    stem = list(range(3000))
    return workload_of([[*stem, 5000 + i] for i in range(num_requests)], [num_outputs] * num_requests)[0]


def test_cascade_makes_a_family_with_a_long_shared_prompt_denser_in_compute():
    alone, together = node_costs(family(40)), node_costs(with_cascade(family(40)))
    assert together.density[0] > 10 * alone.density[0]
    np.testing.assert_array_equal(together.subtree_s, alone.subtree_s)


def test_the_more_requests_share_the_less_memory_time_each_takes_with_cascade():
    sizes = (1, 2, 8, 64, 256, 400)
    per_request = [node_costs(with_cascade(family(size))).memory_s[0] for size in sizes]
    assert all(fewer > more for fewer, more in itertools.pairwise(per_request[:-1]))
    assert per_request[-1] == per_request[-2]
    assert per_request[0] == node_costs(family(1)).memory_s[0]


def test_cascade_changes_nothing_where_nothing_is_shared():
    workload, _ = workload_of([[i, 7, 8] for i in range(20)], [50] * 20)
    np.testing.assert_array_equal(node_costs(with_cascade(workload)).density, node_costs(workload).density)
