import numpy as np
from request_prompts import table_of

from blendserve_core.kv.segments import Segments, shared_segments
from blendserve_core.plan.build_tree import build_tree


def segments_of(prompts: list[list[int]], page_size: int = 4) -> Segments:
    requests = table_of(prompts)
    return shared_segments(build_tree(requests), np.arange(len(prompts)), page_size)


def shared_tokens(segments: Segments, request: int) -> int:
    """Prompt tokens that a request may find cached."""
    segment = segments.of_request[request]
    return int(segments.end[segment] + segments.num_tail_tokens[segment]) if segment >= 0 else 0


TRUNK = list(range(100, 110))


def test_prompts_that_go_on_share_all_of_what_they_have_in_common():
    segments = segments_of([[*TRUNK, 1], [*TRUNK, 2], [*TRUNK, 3]])
    assert [shared_tokens(segments, request) for request in range(3)] == [10, 10, 10]


def test_equal_prompts_share_all_but_their_last_token():
    segments = segments_of([TRUNK, TRUNK])
    assert [shared_tokens(segments, request) for request in range(2)] == [9, 9]


def test_one_short_prompt_takes_nothing_from_many_that_go_on():
    segments = segments_of([TRUNK, *([*TRUNK, own] for own in range(20))])
    assert shared_tokens(segments, 0) == 0
    assert {shared_tokens(segments, request) for request in range(1, 21)} == {10}
    assert segments.num_requests.tolist() == [20]


def test_many_that_end_together_cost_the_others_one_token():
    segments = segments_of([*[TRUNK] * 20, [*TRUNK, 1], [*TRUNK, 2]])
    assert {shared_tokens(segments, request) for request in range(22)} == {9}
    assert segments.num_requests.tolist() == [22]


def test_what_ends_early_still_shares_what_lies_above():
    longer = [*TRUNK, *range(200, 210)]
    prompts = [longer, *([*longer, own] for own in range(25)), *([*TRUNK, own] for own in range(3))]
    segments = segments_of(prompts)
    assert shared_tokens(segments, 0) == 10
    assert shared_tokens(segments, 1) == 20
    assert shared_tokens(segments, len(prompts) - 1) == 10


def test_a_few_short_prompts_do_not_cut_a_tail_in_two():
    """Prompts of every length up to the trunk's: the tail is where nearly all go on."""
    trunk = TRUNK[:5]
    prompts = [trunk[:length] for length in range(3, 6)] + [[*trunk, own] for own in range(100)]
    segments = segments_of(prompts, page_size=16)
    assert {shared_tokens(segments, request) for request in range(3, len(prompts))} == {5}
