import numpy as np
import pytest
from plan_tables import table_of

from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.sharing import shared_with_previous
from blendserve_core.plan.traverse import depth_first_order, shuffled_order

PROMPTS = [[1, 2, 3], [1, 2, 4], [1, 5], [1], [7, 8], [7, 9], [1, 2, 3]]


def test_siblings_follow_their_key_at_every_level():
    tree = build_tree(table_of(PROMPTS))
    descending = depth_first_order(tree, -np.arange(tree.num_nodes))
    assert [PROMPTS[r] for r in descending] == [[7, 9], [7, 8], [1], [1, 5], [1, 2, 4], [1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize("seed", range(5))
def test_a_shuffled_order_still_computes_every_shared_prefix_once(seed):
    tree = build_tree(table_of(PROMPTS))
    order = shuffled_order(tree, seed)
    assert sorted(order.tolist()) == list(range(len(PROMPTS)))
    assert sum(map(len, PROMPTS)) - shared_with_previous(tree, order).sum() == tree.num_unique_tokens


def test_a_seed_decides_the_shuffle():
    tree = build_tree(table_of([[i, i] for i in range(30)]))
    assert shuffled_order(tree, 1).tolist() == shuffled_order(tree, 1).tolist() != shuffled_order(tree, 2).tolist()


def test_no_requests_have_an_order_too():
    assert len(shuffled_order(build_tree(table_of([])), 0)) == 0
