"""The scheduler against an executor that checks every page it is told to read."""

from dataclasses import replace

import numpy as np
import pytest
from checking_executor import CheckingExecutor, naive_output
from hypothesis import given, settings
from hypothesis import strategies as st
from putting_off import PutsOffTheOldest
from request_tables import request_table

from blendserve_core.kv.segments import no_segments, shared_segments
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.policies.ordered import OrderedAdmission
from blendserve_core.schedule.scheduler import Finished, Scheduler
from blendserve_core.schedule.step import Capacity

CAPACITY = Capacity(num_pages=64, page_size=4, max_step_tokens=16, max_sequences=8, max_sequence_tokens=256)


def run(
    requests: RequestTable,
    order: list[int] | None = None,
    capacity: Capacity = CAPACITY,
    eos=(),
    sharing: bool = True,
    policy_type: type[OrderedAdmission] = OrderedAdmission,
) -> tuple[dict[int, Finished], Scheduler, CheckingExecutor]:
    planned = np.arange(requests.num_requests) if order is None else np.array(order, dtype=np.int64)
    tree = build_tree(requests)
    segments = shared_segments(tree, planned, capacity.page_size) if sharing else no_segments(requests.num_requests)
    policy = policy_type(planned)
    scheduler = Scheduler(requests, planned, segments, tree.request_order, policy, capacity, eos)
    executor = CheckingExecutor(capacity)
    finished: dict[int, Finished] = {}
    while (step := scheduler.schedule()) is not None:
        for end in scheduler.update(executor.execute(step)):
            assert end.request not in finished, "a request ended twice"
            finished[end.request] = end
    assert scheduler._memory._state["num_free"] == capacity.num_pages, "pages leaked"
    return finished, scheduler, executor


def outputs(finished: dict[int, Finished]) -> list[list[int]]:
    return [finished[request].token_ids.tolist() for request in sorted(finished)]


prompt_families = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 13), st.integers(1, 9)), min_size=1, max_size=14)


@st.composite
def jobs(draw):
    """Prompts that share stretches of a few long texts, with small numbers of output tokens."""
    seed = draw(st.integers(0, 10_000))
    rng = np.random.default_rng(seed)
    trunk = rng.integers(0, 50, size=30).tolist()
    prompts = []
    for family, shared, own in draw(prompt_families):
        prompts.append([family] * (family * 3) + trunk[:shared] + rng.integers(0, 3, size=own).tolist())
    max_tokens = draw(st.lists(st.integers(1, 9), min_size=len(prompts), max_size=len(prompts)))
    order = draw(st.permutations(range(len(prompts))))
    return prompts, max_tokens, list(order)


@settings(max_examples=150, deadline=None)
@given(
    job=jobs(),
    num_pages=st.integers(13, 40),
    page_size=st.sampled_from([1, 2, 4]),
    budget=st.integers(8, 40),
    sharing=st.booleans(),
)
def test_outputs_never_depend_on_order_memory_budget_or_sharing(job, num_pages, page_size, budget, sharing):
    prompts, max_tokens, order = job
    capacity = Capacity(num_pages * 4 // page_size, page_size, budget, max_sequences=6, max_sequence_tokens=128)
    finished, _, _ = run(request_table(prompts, max_tokens), order, capacity, eos=(7,), sharing=sharing)
    expected = [naive_output(prompt, limit, (7,)) for prompt, limit in zip(prompts, max_tokens, strict=True)]
    assert outputs(finished) == expected


def test_what_a_policy_puts_off_comes_back_and_goes_on():
    prompts = [[i, i + 1, i + 2, i + 3, i + 4] for i in range(4)]
    finished, scheduler, _ = run(request_table(prompts, [9, 7, 5, 3]), policy_type=PutsOffTheOldest)
    assert outputs(finished) == [naive_output(prompt, limit) for prompt, limit in zip(prompts, [9, 7, 5, 3], strict=True)]
    assert scheduler.counters.num_retractions > 0


def test_a_shared_prefix_is_computed_once():
    prefix = list(range(20))
    requests = request_table([[*prefix, 30 + i] for i in range(6)], [1] * 6)
    _, scheduler, _ = run(requests)
    assert scheduler.counters.num_computed_tokens == 20 + 6


def test_equal_prompts_compute_only_their_last_token_again():
    requests = request_table([list(range(13))] * 4, [3] * 4)
    finished, scheduler, _ = run(requests)
    assert scheduler.counters.num_computed_tokens == 13 + 3 * 1 + 4 * 2
    assert [finished[i].num_cached_tokens for i in range(4)] == [0, 12, 12, 12]


def test_without_sharing_every_prompt_is_computed():
    requests = request_table([list(range(13))] * 4, [1] * 4)
    finished, scheduler, _ = run(requests, sharing=False)
    assert scheduler.counters.num_computed_tokens == 4 * 13
    assert all(end.num_cached_tokens == 0 for end in finished.values())


def test_a_part_filled_page_is_copied_when_a_later_step_needs_it():
    prefix = list(range(10))
    requests = request_table([[*prefix, 30, 31], [*prefix, 40, 41]], [5, 5])
    _, scheduler, executor = run(requests, capacity=replace(CAPACITY, max_step_tokens=12))
    assert sum(len(step.copy_lens) for step in executor.steps) == 1
    assert scheduler.counters.num_computed_tokens == 10 + 2 + 2 + 4 + 4


def test_a_small_pool_retracts_and_still_finishes_everything():
    prompts = [[i, *range(10)] for i in range(6)]
    capacity = replace(CAPACITY, num_pages=10)
    finished, scheduler, _ = run(request_table(prompts, [20] * 6), capacity=capacity)
    assert scheduler.counters.num_retractions > 0
    assert scheduler.counters.num_recomputed_tokens > 0
    assert outputs(finished) == [naive_output(prompt, 20) for prompt in prompts]


def test_a_prompt_larger_than_the_pool_is_an_error_and_the_others_are_served():
    prompts = [list(range(40)) + [i] * 200 for i in range(1)] + [[1, 2, 3]]
    finished, _, _ = run(request_table(prompts, [4, 4]), capacity=replace(CAPACITY, num_pages=20))
    assert finished[0].finish_reason == "error"
    assert "KV pool of 80 tokens" in finished[0].error
    assert finished[1].token_ids.tolist() == naive_output([1, 2, 3], 4)


def test_a_sequence_that_outgrows_the_pool_alone_ends_as_an_error_that_keeps_its_tokens():
    capacity = replace(CAPACITY, num_pages=4)
    finished, _, _ = run(request_table([[1, 2, 3], [4, 5]], [40, 3]), capacity=capacity)
    assert finished[0].finish_reason == "error"
    assert finished[0].token_ids.tolist() == naive_output([1, 2, 3], 40)[:14]
    assert finished[1].finish_reason == "length"


def test_end_of_sequence_and_length_are_told_apart():
    prompts = [[i] for i in range(30)]
    finished, _, _ = run(request_table(prompts, [6] * 30), eos=(7,))
    for request, end in finished.items():
        is_stopped = 7 in naive_output(prompts[request], 6)
        assert end.finish_reason == ("stop" if is_stopped else "length")


def test_a_row_that_ignores_end_of_sequence_runs_to_its_limit():
    finished, _, _ = run(request_table([[i] for i in range(10)], [9] * 10, ignore_eos=True), eos=tuple(range(50)))
    assert all(len(end.token_ids) == 9 for end in finished.values())


def test_stop_tokens_of_a_row_end_only_that_row():
    prompts = [[3], [3]]
    second = naive_output([3], 5)[1]
    requests = request_table(prompts, [5, 5])
    sampling = replace(
        requests.sampling,
        stop_token_indptr=np.array([0, 1, 1]),
        stop_token_ids=np.array([second], dtype=np.int32),
    )
    finished, _, _ = run(replace(requests, sampling=sampling))
    assert finished[0].token_ids.tolist() == naive_output([3], 5)[:2]
    assert finished[0].finish_reason == "stop"
    assert len(finished[1].token_ids) == 5


def test_a_request_whose_text_stopped_ends_with_the_token_that_stopped_it():
    requests = request_table([[1, 2], [3, 4]], [10, 10])
    tree = build_tree(requests)
    order = np.arange(2)
    scheduler = Scheduler(
        requests, order, shared_segments(tree, order, 4), tree.request_order, OrderedAdmission(order), CAPACITY, ()
    )
    executor = CheckingExecutor(CAPACITY)
    step = scheduler.schedule()
    assert step is not None
    finished = scheduler.update(executor.execute(step), stopped=frozenset([1]))
    assert [(end.request, end.finish_reason, len(end.token_ids)) for end in finished] == [(1, "stop", 1)]
    assert set(scheduler.unfinished_outputs()) == {0}


def test_no_requests_means_no_steps():
    requests = request_table([[1]], [1])
    finished, scheduler, _ = run(requests, order=[])
    assert finished == {}
    assert scheduler.counters.num_steps == 0


def test_a_step_keeps_its_token_budget_and_decodes_come_first():
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 50, size=size).tolist() for size in rng.integers(1, 40, size=30)]
    _, _, executor = run(request_table(prompts, rng.integers(1, 12, size=30).tolist()))
    assert max(step.num_tokens for step in executor.steps) == CAPACITY.max_step_tokens


@pytest.mark.parametrize("policy_order", [[0, 1, 2, 3], [3, 1, 0, 2]])
def test_equal_jobs_give_equal_step_traces(policy_order):
    requests = request_table([[1, 2, 3, 4, i] for i in range(4)], [5, 1, 3, 8])
    _, _, first = run(requests, policy_order)
    _, _, second = run(requests, policy_order)
    for a, b in zip(first.steps, second.steps, strict=True):
        for name in a.__slots__:
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
