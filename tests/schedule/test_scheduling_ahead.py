"""Steps that are planned before the tokens of the step before are known: what comes of them must not show it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from checking_executor import VOCAB_SIZE, CheckingExecutor, naive_output
from hypothesis import given, settings
from hypothesis import strategies as st
from putting_off import PutsOffTheOldest
from request_tables import request_table

from blendserve_core.kv.segments import shared_segments
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.run import StepRecord, run_steps
from blendserve_core.schedule.policies.ordered import OrderedAdmission
from blendserve_core.schedule.scheduler import Finished, Scheduler
from blendserve_core.schedule.step import Capacity, Logprobs, StepPlan, StepResult

CAPACITY = Capacity(num_pages=64, page_size=4, max_step_tokens=16, max_sequences=8, max_sequence_tokens=64)
EOS = (7, 11, 23)


@dataclass
class FarDevice(CheckingExecutor):
    """Runs a step when it is launched, tells of it when it is finished, and knows the last sampled tokens as a device does.

    Requests in ``seen_by_host`` have their tokens sampled on the host: steps with them may not be followed.
    """

    capacity: Capacity
    seen_by_host: frozenset[int] = frozenset()
    num_followed: int = 0
    sampled: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    under_way: deque[Any] = field(default_factory=deque)

    def __post_init__(self) -> None:
        super().__init__(self.capacity)

    def launch(self, step: StepPlan) -> StepResult:
        assert len(self.under_way) < 2, "two steps are under way already"
        is_unseen = step.token_ids < 0
        assert not is_unseen.any() or self.under_way, "the scheduler knows these tokens"
        self.num_followed += len(self.under_way)
        token_ids = step.token_ids.copy()
        token_ids[is_unseen] = self.sampled[-1 - token_ids[is_unseen]]
        result = super().execute(replace(step, token_ids=token_ids))
        self.sampled = result.token_ids
        result = replace(result, logprobs=logprobs_of(result.token_ids))
        self.under_way.append(result)
        return result

    def finish(self, launched: StepResult) -> StepResult:
        assert launched is self.under_way.popleft(), "steps end in the order of their launches"
        return launched

    def may_be_followed(self, step: StepPlan) -> bool:
        return not self.seen_by_host.intersection(step.seq_ids[step.is_sampled].tolist())


def logprobs_of(token_ids: np.ndarray) -> Logprobs:
    return Logprobs(-token_ids.astype(np.float32), token_ids[:, None], -token_ids[:, None].astype(np.float32))


def serve(
    prompts: list[list[int]],
    max_tokens: list[int],
    executor: CheckingExecutor,
    policy_type: type[OrderedAdmission] = OrderedAdmission,
    stop_token: int = -1,
) -> tuple[dict[int, Finished], list[StepRecord], Scheduler]:
    """``stop_token`` stands for a stop string, which is looked for in what the step is said to have sampled."""
    requests, planned = request_table(prompts, max_tokens), np.arange(len(prompts))
    tree = build_tree(requests)
    segments = shared_segments(tree, planned, executor.capacity.page_size)
    scheduler = Scheduler(requests, planned, segments, tree.request_order, policy_type(planned), executor.capacity, EOS)

    def find_stopped(step: StepPlan, result: StepResult) -> frozenset[int]:
        return frozenset(step.seq_ids[step.is_sampled][result.token_ids == stop_token].tolist())

    records, finished = [], {}
    for record in run_steps(scheduler, executor, find_stopped):
        records.append(record)
        assert all((tokens >= 0).all() for tokens in scheduler.unfinished_outputs().values()), "a caller sees unknown tokens"
        for end in record.finished:
            assert end.request not in finished, "a request ended twice"
            finished[end.request] = end
    assert scheduler._memory._state["num_free"] == executor.capacity.num_pages, "pages leaked"
    return finished, records, scheduler


def rows(finished: dict[int, Finished]) -> list[tuple[list[int], str, str]]:
    return [(end.token_ids.tolist(), end.finish_reason, end.error) for _, end in sorted(finished.items())]


def logprobs_seen(records: list[StepRecord], num_requests: int) -> list[list[float]]:
    """What a reader of the records gathers for each request."""
    seen: list[list[float]] = [[] for _ in range(num_requests)]
    for record in records:
        sampled = record.step.seq_ids[record.step.is_sampled].tolist()
        assert len(sampled) == len(record.result.token_ids)
        if record.result.logprobs is not None:
            for request, logprob in zip(sampled, record.result.logprobs.chosen.tolist(), strict=True):
                seen[request].append(logprob)
    return seen


@st.composite
def jobs(draw):
    """Prompts that share stretches of a long text, a few of them long, with outputs of one token or more."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    trunk = rng.integers(0, VOCAB_SIZE, size=30).tolist()
    shapes = draw(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=14))
    prompts = [trunk[:shared] + rng.integers(0, 4, size=own).tolist() for shared, own in shapes]
    max_tokens = draw(st.lists(st.integers(1, 14), min_size=len(prompts), max_size=len(prompts)))
    return prompts, max_tokens


@settings(max_examples=200, deadline=None)
@given(
    job=jobs(),
    num_pages=st.integers(13, 40),
    page_size=st.sampled_from([1, 2, 4]),
    budget=st.integers(8, 40),
    policy_type=st.sampled_from([OrderedAdmission, PutsOffTheOldest]),
    seen_by_host=st.frozensets(st.integers(0, 13), max_size=3),
)
def test_what_is_planned_ahead_gives_the_rows_of_what_is_not(job, num_pages, page_size, budget, policy_type, seen_by_host):
    prompts, max_tokens = job
    capacity = Capacity(num_pages * 4 // page_size, page_size, budget, max_sequences=6, max_sequence_tokens=64)
    ahead, records, _ = serve(prompts, max_tokens, FarDevice(capacity, seen_by_host), policy_type, stop_token=3)
    plain, _, _ = serve(prompts, max_tokens, CheckingExecutor(capacity), policy_type, stop_token=3)
    assert rows(ahead) == rows(plain)
    expected = [naive_output(prompt, limit, (*EOS, 3)) for prompt, limit in zip(prompts, max_tokens, strict=True)]
    assert [tokens for tokens, _, _ in rows(ahead)] == expected
    assert logprobs_seen(records, len(prompts)) == [[-float(token) for token in tokens] for tokens in expected]


def test_each_step_is_launched_before_the_one_before_is_finished():
    executor = FarDevice(CAPACITY)
    _, records, scheduler = serve([[1, 2, 3], [4, 5], [6]], [12, 9, 14], executor)
    assert executor.num_followed == len(records) - 1
    assert scheduler.counters.num_steps == len(records)


def test_lengths_that_are_known_beforehand_cost_no_token_too_many():
    prompts = [[i, i + 1] for i in range(20) if not set(naive_output([i, i + 1], 3)) & set(EOS)][:3]
    finished, _, scheduler = serve(prompts, [1, 2, 3], FarDevice(CAPACITY))
    assert [end.finish_reason for end in finished.values()] == ["length"] * 3
    assert scheduler.counters.num_computed_tokens == 2 * 3 + 0 + 1 + 2


def test_a_sequence_that_ends_by_itself_computes_one_token_too_many_and_nobody_sees_it():
    prompt = next([i, j] for i in range(50) for j in range(50) if len(naive_output([i, j], 9, EOS)) == 4)
    finished, records, scheduler = serve([prompt], [9], FarDevice(CAPACITY))
    assert rows(finished) == [(naive_output(prompt, 9, EOS), "stop", "")]
    assert scheduler.counters.num_computed_tokens == 2 + 4
    assert [len(record.result.token_ids) for record in records] == [1, 1, 1, 1, 0]


def test_a_step_that_the_host_must_see_is_not_followed():
    executor = FarDevice(CAPACITY, seen_by_host=frozenset([0]))
    serve([[1, 2, 3], [4, 5]], [3, 20], executor)
    followed = executor.num_followed
    assert 0 < followed < len(executor.steps) - 1
    assert all((step.token_ids >= 0).all() for step in executor.steps), "the device had all tokens when it ran them"


def test_planning_ahead_waits_where_a_sequence_has_to_make_room():
    capacity = replace(CAPACITY, num_pages=10)
    prompts = [[i, *range(10)] for i in range(6)]
    finished, _, scheduler = serve(prompts, [20] * 6, FarDevice(capacity))
    assert scheduler.counters.num_retractions > 0
    assert [tokens for tokens, _, _ in rows(finished)] == [naive_output(prompt, 20, EOS) for prompt in prompts]


def test_a_prompt_that_never_fits_is_an_error_beside_steps_that_are_planned_ahead():
    finished, _, _ = serve([[1, 2, 3], [5] * 70, [4, 5]], [9, 4, 9], FarDevice(CAPACITY))
    assert finished[1].finish_reason == "error"
    assert finished[2].token_ids.tolist() == naive_output([4, 5], 9, EOS)
