import numpy as np
from plan_tables import table_of

from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.groups import Groups, column_groups, tree_groups

FAMILIES = [[1, 2, 3, i] for i in range(20)] + [[7, i] for i in range(10)] + [[1, 2, 3, 50, 60, i] for i in range(9)]


def ancestors(groups: Groups, group: int) -> list[int]:
    chain = [group]
    while groups.parent[chain[-1]] >= 0:
        chain.append(int(groups.parent[chain[-1]]))
    return chain


def test_families_with_their_own_prefix_are_told_apart():
    of_request = tree_groups(build_tree(table_of(FAMILIES))).of_request
    assert [len(set(of_request[part].tolist())) for part in (slice(0, 20), slice(20, 30), slice(30, 39))] == [1, 1, 1]
    assert len(set(of_request.tolist())) == 3


def test_a_nested_family_and_the_rest_of_its_outer_family_have_the_outer_one_in_common():
    groups = tree_groups(build_tree(table_of(FAMILIES)))
    outer, nested = ancestors(groups, groups.of_request[0]), ancestors(groups, groups.of_request[30])
    assert len(set(outer) & set(nested)) == 2


def test_parents_come_before_children():
    groups = tree_groups(build_tree(table_of(FAMILIES)))
    assert groups.parent[0] == -1
    assert (groups.parent[1:] < np.arange(1, groups.num_groups)).all()


def test_families_smaller_than_asked_join_the_rest():
    of_request = tree_groups(build_tree(table_of(FAMILIES)), min_requests=15).of_request
    assert of_request[0] == of_request[30] != of_request[20]


def test_a_header_that_all_prompts_share_founds_no_group():
    with_header = [[9, 9, 9, *prompt] for prompt in FAMILIES]
    depth_one = tree_groups(build_tree(table_of(with_header)), max_depth=1)
    assert len(set(depth_one.of_request.tolist())) == 2


def test_a_column_divides_requests_of_one_subtree():
    inner = tree_groups(build_tree(table_of([[1, i] for i in range(20)])))
    column = np.array(["short", "long"] * 10)
    groups = column_groups(column, inner)
    assert len(set(groups.of_request[::2].tolist())) == len(set(groups.of_request[1::2].tolist())) == 1
    assert groups.of_request[0] != groups.of_request[1]
    assert len(ancestors(groups, groups.of_request[0])) == 3
