"""Which requests ask for the same, against a comparison of everything."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blendserve_core.data.digests import first_of_equals, work_digests
from blendserve_core.requests import RequestTable, SamplingColumns
from blendserve_core.structured.formats import ResponseFormat


def table(prompts, stops=None, stop_tokens=None, **sampling):
    """Greedy requests with these prompts; ``stops`` and ``stop_tokens`` per request."""
    lens = np.array([len(prompt) for prompt in prompts], dtype=np.int32)
    columns = SamplingColumns.greedy(len(prompts), 16, **sampling)
    if stops:
        sets = ((), *dict.fromkeys(stop for stop in stops if stop))
        columns = replace(columns, stop_set=np.array([sets.index(stop) for stop in stops], dtype=np.int32), stop_sets=sets)
    if stop_tokens:
        indptr = np.cumsum([0, *map(len, stop_tokens)])
        columns = replace(columns, stop_token_indptr=indptr, stop_token_ids=np.concatenate(stop_tokens).astype(np.int32))
    return RequestTable(
        row=np.arange(len(prompts)),
        sample_index=np.zeros(len(prompts), dtype=np.int32),
        prompt_start=np.cumsum(lens, dtype=np.int64) - lens,
        num_prompt_tokens=lens,
        token_ids=np.array([token for prompt in prompts for token in prompt], dtype=np.int32),
        sampling=columns,
    )


def digests_of(requests, draw_key=None):
    draw_key = np.zeros(requests.num_requests, dtype=np.uint64) if draw_key is None else np.array(draw_key, dtype=np.uint64)
    return [tuple(digest) for digest in work_digests(requests, draw_key).tolist()]


def test_equal_prompts_with_equal_parameters_have_equal_digests():
    first, second, third = digests_of(table([[1, 2], [1, 2, 3], [1, 2]]))
    assert first == third != second


@pytest.mark.parametrize(
    "name",
    ["max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
     "ignore_eos", "logprobs"],
)  # fmt: skip
def test_every_parameter_tells_requests_apart(name):
    requests = table([[1], [1]])
    changed = getattr(requests.sampling, name).copy()
    changed[1] = not changed[1] if name == "ignore_eos" else changed[1] + 1
    first, second = digests_of(table_with(requests, **{name: changed}))
    assert first != second


def table_with(requests, **columns):
    return RequestTable(
        requests.row, requests.sample_index, requests.prompt_start, requests.num_prompt_tokens, requests.token_ids,
        replace(requests.sampling, **columns),
    )  # fmt: skip


def test_a_draw_tells_requests_apart_and_their_rng_keys_do_not():
    assert len(set(digests_of(table([[1]] * 3), draw_key=[5, 6, 5]))) == 2


def test_stop_tokens_are_not_mistaken_for_the_prompt():
    first, second = digests_of(table([[7], [7, 7]], stop_tokens=[[7, 7], [7]]))
    assert first != second


def test_stop_strings_count_by_what_they_are_not_by_their_number_in_this_table():
    alone = digests_of(table([[1]], stops=[("b",)]))
    beside_another = digests_of(table([[1], [1]], stops=[("a",), ("b",)]))
    assert alone[0] == beside_another[1] != beside_another[0]


def test_response_formats_count_by_what_they_are_and_none_is_one_too():
    formats = (ResponseFormat("regex", "a+"), ResponseFormat("regex", "b+"))
    requests = table_with(table([[1]] * 3), response_format=np.array([-1, 0, 1], dtype=np.int32), response_formats=formats)
    swapped = table_with(table([[1]] * 3), response_format=np.array([-1, 1, 0], dtype=np.int32), response_formats=formats[::-1])
    assert digests_of(requests) == digests_of(swapped)
    assert len(set(digests_of(requests))) == 3


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=3), st.integers(1, 2)), max_size=20))
def test_the_first_of_equals_is_the_one_that_comparing_everything_finds(asked):
    requests = table([prompt for prompt, _ in asked] or [[0]])
    requests = table_with(requests, max_tokens=np.array([limit for _, limit in asked] or [1], dtype=np.int32))
    wanted = [asked.index(each) for each in asked] or [0]
    digests = work_digests(requests, np.zeros(requests.num_requests, dtype=np.uint64))
    assert first_of_equals(digests, np.ones(len(wanted), dtype=np.bool_)).tolist() == wanted


def test_what_is_a_matter_of_luck_stands_for_itself_alone():
    digests = work_digests(table([[1]] * 4), np.zeros(4, dtype=np.uint64))
    assert first_of_equals(digests, np.array([False, True, False, True])).tolist() == [0, 1, 2, 1]
