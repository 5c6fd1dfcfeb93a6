import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blendserve_core.data.openai.bodies import REQUEST_SCHEMA, read_requests

CHAT = {"messages": [{"role": "user", "content": "Hi."}]}


def read(body, url=None, method=None):
    """The row's columns that are not null, and its error message."""
    batch = pa.RecordBatch.from_pylist(
        [{"url": url, "method": method, "body": json.dumps(body)}],
        pa.schema(dict.fromkeys(["url", "method", "body"], pa.string())),
    )
    requests = read_requests(batch)
    row = {name: value for name, value in requests.rows.to_pylist()[0].items() if value is not None}
    return row, requests.errors[0].message if requests.errors else None


def test_parameters_come_out_under_our_names():
    body = CHAT | {
        "model": "m", "temperature": 1, "top_p": 0.5, "n": 2.0, "seed": 2**62, "stop": "x", "max_completion_tokens": 9,
        "logprobs": True, "top_logprobs": 3, "presence_penalty": 0.5, "frequency_penalty": -1, "stream": True, "user": "u",
        "response_format": {"type": "json_object"},
    }  # fmt: skip
    row, error = read(body)
    assert error is None
    assert json.loads(row.pop("messages")) == CHAT["messages"]
    assert json.loads(row.pop("response_format")) == {"type": "json_object"}
    assert row == {
        "temperature": 1.0, "top_p": 0.5, "n": 2, "seed": 2**62, "stop": ["x"], "max_tokens": 9, "logprobs": 3,
        "presence_penalty": 0.5, "frequency_penalty": -1.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("prompt", "column"),
    [
        ("Once", {"prompt": "Once"}),
        (["Once"], {"prompt": "Once"}),
        ([1, 2], {"prompt_token_ids": [1, 2]}),
        ([[3]], {"prompt_token_ids": [3]}),
    ],
)
def test_a_completion_takes_a_text_or_token_ids_and_sixteen_tokens_by_default(prompt, column):
    row, error = read({"prompt": prompt}, "/v1/completions")
    assert (row, error) == (column | {"max_tokens": 16}, None)


@pytest.mark.parametrize(
    ("body", "url", "message"),
    [
        ({"prompt": ["a", "b"]}, "/v1/completions", "it must be one text"),
        ({"prompt": None}, "/v1/completions", "it must be one text"),
        ({"prompt": [True]}, "/v1/completions", "whole number"),
        ({"messages": "Hi."}, "/v1/chat/completions", "messages are missing, empty or no list"),
        (CHAT | {"max_tokens": 1.5}, None, "max_tokens is 1.5; it must be a whole number"),
        (CHAT | {"max_tokens": "8"}, None, "max_tokens is '8'"),
        (CHAT | {"temperature": True}, None, "temperature is True; it must be a number"),
        (CHAT | {"seed": 2**63}, None, "whole number of 64 bits"),
        (CHAT | {"stop": [1]}, None, "stop is [1]"),
        (CHAT | {"top_logprobs": 2}, None, "top_logprobs needs logprobs: true"),
        (CHAT | {"tools": [{}]}, None, "tools [{}] is not served"),
        (CHAT | {"logit_bias": {"1": 2}, "x\x1b": 1}, None, r"unknown parameters: 'x\x1b'; logit_bias {'1': 2} is not served"),
        (CHAT, "/v1/score", "url is '/v1/score'"),
        ([], None, "body is [], not an object"),
        (None, None, "body is None, not an object"),
    ],
)
def test_what_cannot_be_served_is_said(body, url, message):
    row, error = read(body, url)
    assert row == {}
    assert error is not None
    assert message in error


def test_values_that_ask_for_nothing_special_are_served():
    neutral = {"best_of": 1, "echo": False, "tools": [], "logit_bias": {}, "tool_choice": "none", "foo": None}
    assert read(CHAT | neutral)[1] is None


def test_other_methods_than_post_are_errors():
    assert read(CHAT, method="GET")[1] == "method is 'GET'; it must be POST"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from([*REQUEST_SCHEMA.names, "top_logprobs", "max_completion_tokens", "best_of", "echo", "stream", "foo"])


@settings(max_examples=300, deadline=None)
@given(body=st.dictionaries(NAMES, JSON_VALUES, max_size=5) | JSON_VALUES, url=st.none() | st.just("/v1/completions"))
def test_any_body_is_a_request_or_an_error_of_its_row(body, url):
    row, error = read(body, url)
    assert (error is None) == ({"messages", "prompt", "prompt_token_ids"} & set(row) != set())
