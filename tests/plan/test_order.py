import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import COST, mixed_families, naive_shared_tokens, workload_of

from blendserve_core.plan.node_costs import node_costs
from blendserve_core.plan.order import density_order, depth_first_order, first_come_order, random_order


def blend(workload, seed=0, keep_sharing=0.99):
    return density_order(workload, node_costs(workload), seed=seed, keep_sharing=keep_sharing)


def naive_unit_densities(order, prompts, outputs):
    """Density of every unit, its shared prefixes computed once, from token ids."""
    densities = []
    for start, stop in zip(order.unit_indptr[:-1], order.unit_indptr[1:], strict=True):
        unit = order.order[start:stop]
        prefixes = {tuple(prompts[r][:end]) for r in unit for end in range(1, len(prompts[r]) + 1)}
        compute_s = sum(COST.compute_s(len(prefix), 0, len(prefix) - 1) for prefix in prefixes)
        compute_s += sum(COST.compute_s(len(prompts[r]), outputs[r], len(prompts[r])) for r in unit)
        densities.append(compute_s / sum(COST.memory_s(len(prompts[r]), outputs[r]) for r in unit))
    return densities


small_jobs = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.sampled_from([1, 2, 40, 3000])), min_size=1, max_size=14
)


@settings(max_examples=200, deadline=None)
@given(small_jobs, st.sampled_from([None, 0, 1]), st.sampled_from([0.0, 0.8, 1.0]))
def test_units_stand_by_non_increasing_density_and_keep_their_share_of_the_sharing(job, seed, keep_sharing):
    prompts, outputs = [prompt for prompt, _ in job], [output for _, output in job]
    workload, _ = workload_of(prompts, outputs)
    order = blend(workload, seed, keep_sharing)
    assert sorted(order.order.tolist()) == list(range(len(job)))
    assert (order.unit_indptr[0], order.unit_indptr[-1]) == (0, len(job))
    assert (np.diff(order.unit_indptr) > 0).all()
    densities = naive_unit_densities(order, prompts, outputs)
    assert all(after <= before * (1 + 1e-6) for before, after in itertools.pairwise(densities))
    most = sum(map(len, prompts)) - workload.tree.num_unique_tokens
    assert naive_shared_tokens(prompts, order.order.tolist()) >= keep_sharing * most - 1e-9


def test_families_of_opposite_demand_go_to_opposite_ends():
    prompts, outputs = mixed_families()
    order = blend(workload_of(prompts, outputs)[0]).order
    lengths = np.array(outputs)[order]
    assert set(lengths[:80].tolist()) == {2}
    assert set(lengths[-5:].tolist()) == {20_000}


def test_leaves_of_a_unit_are_shuffled_but_not_in_the_papers_order():
    prompts, outputs = [[1, i] for i in range(30)], [100] * 30
    workload, _ = workload_of(prompts, outputs)
    assert blend(workload, seed=1).order.tolist() != blend(workload, seed=2).order.tolist()
    assert blend(workload, seed=None).order.tolist() == blend(workload, seed=None).order.tolist()


def test_first_come_is_table_order_with_single_requests():
    order = first_come_order(3)
    assert (order.order.tolist(), order.unit_indptr.tolist()) == ([0, 1, 2], [0, 1, 2, 3])


def test_random_is_a_seeded_permutation():
    assert sorted(random_order(50, 0).order.tolist()) == list(range(50))
    assert random_order(50, 0).order.tolist() == random_order(50, 0).order.tolist() != random_order(50, 1).order.tolist()


def test_depth_first_units_end_where_nothing_is_shared():
    workload, _ = workload_of([[2, 2], [1, 1], [2, 3], [1, 4]], [5] * 4)
    order = depth_first_order(workload.tree)
    assert order.order.tolist() == [1, 3, 0, 2]
    assert order.unit_indptr.tolist() == [0, 2, 4]


@pytest.mark.parametrize("seed", [None, 3])
def test_no_requests_give_an_empty_order(seed):
    order = blend(workload_of([], [])[0], seed)
    assert (len(order.order), order.unit_indptr.tolist()) == (0, [0])
