import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_tables import table_of
from planning import naive_shared_tokens

from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.sharing import shared_by_others, shared_in_tree_order, shared_with_previous, sharing_ratio

prompts_strategy = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=12)


@settings(max_examples=300, deadline=None)
@given(prompts_strategy, st.randoms(use_true_random=False))
def test_shared_tokens_of_any_order_are_those_counted_token_by_token(prompts, random):
    order = list(range(len(prompts)))
    random.shuffle(order)
    tree = build_tree(table_of(prompts))
    assert shared_with_previous(tree, np.array(order)).sum() == naive_shared_tokens(prompts, order)


def test_many_blocks_give_the_same_as_counting():
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, 3, (700, 9)).tolist()
    order = rng.permutation(700)[:500]
    tree = build_tree(table_of(prompts))
    assert shared_with_previous(tree, order).sum() == naive_shared_tokens(prompts, order.tolist())


@settings(max_examples=200, deadline=None)
@given(prompts_strategy)
def test_the_depth_first_order_computes_every_unique_token_once(prompts):
    tree = build_tree(table_of(prompts))
    total = sum(map(len, prompts))
    assert total - shared_in_tree_order(tree).sum() == tree.num_unique_tokens


def test_the_ratio_is_shared_over_all_tokens():
    table = table_of([[1, 2, 3, 4], [9, 9], [1, 2, 3, 5]])
    tree = build_tree(table)
    assert sharing_ratio(tree, np.array([0, 2, 1]), table.num_prompt_tokens) == 0.3
    assert sharing_ratio(tree, np.array([0, 1, 2]), table.num_prompt_tokens) == 0
    assert sharing_ratio(tree, np.array([], np.int64), table.num_prompt_tokens) == 0


@settings(max_examples=300, deadline=None)
@given(prompts_strategy)
def test_what_others_share_is_the_longest_prefix_that_anyone_else_has(prompts):
    requests = np.arange(len(prompts))
    num_tokens, num_sharing = shared_by_others(build_tree(table_of(prompts)), requests)
    for request, prompt in enumerate(prompts):
        longest = max((common(prompt, other) for i, other in enumerate(prompts) if i != request), default=0)
        assert num_tokens[request] == longest
        assert num_sharing[request] == sum(other[:longest] == prompt[:longest] for other in prompts)


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
