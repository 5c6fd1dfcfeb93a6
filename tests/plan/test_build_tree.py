import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_tables import table_of

from blendserve_core.plan.build_tree import build_tree, subtree_sums
from blendserve_core.requests import RequestTable

# Few distinct tokens and a shared stem make deep trees, equal prompts and prompts that are prefixes of others likely.
prompts_strategy = st.lists(
    st.builds(
        lambda stem, tail: stem + tail, st.sampled_from([[], [1] * 5, [1, 2] * 3]), st.lists(st.integers(0, 3), max_size=7)
    ),
    max_size=12,
)


def naive_nodes(prompts):
    """Every node of the compressed trie as (path, requests below, requests ending in it), from a dict of all prefixes."""
    below = {}
    for request, prompt in enumerate(prompts):
        for depth in range(len(prompt) + 1):
            below.setdefault(tuple(prompt[:depth]), []).append(request)
    nodes = {(): ([], [])}
    for path, requests in below.items():
        ending = [r for r in requests if len(prompts[r]) == len(path)]
        children = {prompts[r][len(path)] for r in requests if len(prompts[r]) > len(path)}
        if path == () or ending or len(children) > 1:
            nodes[path] = (requests, ending)
    return nodes


def nodes_of(tree, table):
    """The same from the arrays."""
    nodes = {}
    for node in range(tree.num_nodes):
        below = tree.request_order[tree.request_start[node] : tree.request_end[node]]
        path = tuple(table.prompt(below[0])[: tree.end_depth[node]].tolist()) if len(below) else ()
        nodes[path] = (sorted(below.tolist()), np.flatnonzero(tree.node_of_request == node).tolist())
    assert len(nodes) == tree.num_nodes
    return nodes


@settings(max_examples=500, deadline=None)
@given(prompts_strategy)
def test_the_tree_is_the_one_a_dict_trie_gives(prompts):
    table = table_of(prompts)
    assert nodes_of(build_tree(table), table) == naive_nodes(prompts)


def test_thousands_of_random_trees_are_those_a_dict_trie_gives():
    rng = np.random.default_rng(1)
    for _ in range(3000):
        lens = rng.integers(0, 8, rng.integers(1, 12))
        prompts = [rng.integers(0, rng.integers(1, 4), size).tolist() for size in lens]
        table = table_of(prompts)
        assert nodes_of(build_tree(table), table) == naive_nodes(prompts)


@settings(max_examples=200, deadline=None)
@given(prompts_strategy)
def test_nodes_lie_in_depth_first_order_and_segments_join_their_parents(prompts):
    tree = build_tree(table_of(prompts))
    assert (tree.parent[0], tree.end_depth[0], tree.subtree_end[0]) == (-1, 0, tree.num_nodes)
    for node in range(1, tree.num_nodes):
        parent = tree.parent[node]
        assert parent < node < tree.subtree_end[node] <= tree.subtree_end[parent]
        assert tree.start_depth[node] == tree.end_depth[parent] < tree.end_depth[node]
        below = np.flatnonzero(tree.parent == node)
        assert all(node < child < tree.subtree_end[node] for child in below)
    assert sorted(tree.request_order) == list(range(len(prompts)))


@settings(max_examples=200, deadline=None)
@given(prompts_strategy)
def test_the_sum_of_a_node_is_its_own_requests_and_its_children(prompts):
    tree = build_tree(table_of(prompts))
    values = np.random.default_rng(0).integers(0, 100, len(prompts))
    sums = subtree_sums(tree, values)
    own = np.bincount(tree.node_of_request, weights=values, minlength=tree.num_nodes)
    for node in range(tree.num_nodes):
        assert sums[node] == own[node] + sums[tree.parent == node].sum()


def test_equal_prompts_keep_table_order():
    tree = build_tree(table_of([[4, 4], [1], [4, 4], [1], [4, 4]]))
    assert tree.request_order.tolist() == [1, 3, 0, 2, 4]


def test_samples_of_a_row_share_a_node():
    table = table_of([[5, 6], [5, 7]], num_samples=3)
    tree = build_tree(table)
    assert tree.num_nodes == 4
    assert len(set(tree.node_of_request[:3].tolist())) == 1
    assert tree.num_unique_tokens == 3


def test_long_shared_prompts_of_every_length_sort_as_lists_do():
    rng = np.random.default_rng(3)
    stem = rng.integers(0, 50_000, 300).tolist()
    prompts = [stem[: rng.integers(1, 300)] + rng.integers(0, 2, rng.integers(0, 6)).tolist() for _ in range(400)]
    tree = build_tree(table_of(prompts))
    assert [prompts[r] for r in tree.request_order] == sorted(prompts)


@pytest.mark.parametrize("prompts", [[], [[7, 8, 9]], [[1, 2]] * 50])
def test_no_one_and_equal_requests_give_a_tree(prompts):
    tree = build_tree(table_of(prompts))
    assert tree.num_nodes == (2 if prompts else 1)
    assert tree.request_order.tolist() == list(range(len(prompts)))


def test_a_memory_mapped_store_gives_the_same_tree(tmp_path):
    table = table_of([[1, 2, 3], [1, 2], [9], [1, 2, 3]])
    table.save(tmp_path)
    loaded = RequestTable.load(tmp_path)
    assert isinstance(loaded.token_ids, np.memmap)
    assert build_tree(loaded).request_order.tolist() == build_tree(table).request_order.tolist()
