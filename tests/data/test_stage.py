import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from staging_helpers import errors_by_row, parameters, read_errors, stage_file, stage_rows

from blendserve_core.data.rng_keys import rng_keys
from blendserve_core.data.stage import stage
from blendserve_core.requests import RequestTable
from schemas.manifest import StageManifest


def prompts(requests, tokenizer):
    return [tokenizer.decode(requests.prompt(i).tolist()) for i in range(requests.num_requests)]


def test_a_staged_job_can_be_read_back_from_its_folder(tokenizer, tmp_path):
    manifest, requests, errors = stage_rows(
        {"prompt": ["ab", "", "cde"], "n": [1, 1, 2]}, tokenizer, tmp_path, sampling={"temperature": 1.0}
    )
    assert StageManifest.read(tmp_path / "staged" / "manifest.json") == manifest
    assert (manifest.num_requests, manifest.num_sequences, manifest.num_errors) == (3, 3, 1)
    assert (manifest.num_prompt_tokens, manifest.has_request_id, manifest.wants_logprobs) == (8, False, False)
    assert prompts(requests, tokenizer) == ["ab", "cde", "cde"]
    assert (requests.row.tolist(), requests.sample_index.tolist()) == ([0, 2, 2], [0, 0, 1])
    assert requests.prompt_start.tolist() == [0, 2, 2]
    assert [error["row"] for error in errors] == [1]
    assert not list((tmp_path / "staged").glob(".*"))


def test_the_output_must_fit_the_context(tokenizer, tmp_path):
    rows = {"prompt": ["a" * 9, "a" * 10, "a" * 4], "max_tokens": [99, 99, 3]}
    _, requests, errors = stage_rows(rows, tokenizer, tmp_path, context=10)
    assert requests.row.tolist() == [0, 2]
    assert requests.sampling.max_tokens.tolist() == [1, 3]
    assert errors[0]["error"]["message"].startswith("the prompt has 10 tokens")
    assert len(requests.token_ids) == 13


def test_a_folder_left_half_staged_is_staged_anew(tokenizer, tmp_path):
    (tmp_path / "staged").mkdir()
    for name in ("input-00000.parquet", "input-00007.parquet", ".input-00008.parquet.tmp", "errors.parquet"):
        (tmp_path / "staged" / name).write_bytes(b"half")
    stage_rows({"prompt": ["a"]}, tokenizer, tmp_path)
    assert [path.name for path in (tmp_path / "staged").glob("*input*")] == ["input-00000.parquet"]


def test_a_source_that_breaks_off_leaves_no_manifest(tokenizer, tmp_path):
    class Broken:
        schema = pa.schema([("prompt", pa.string())])
        digest = ""

        def batches(self):
            yield pa.RecordBatch.from_pydict({"prompt": ["a"]})
            raise ValueError("x.parquet: cannot be read to its end")

    with pytest.raises(ValueError, match=r"x\.parquet"):
        stage(parameters("unused"), Broken(), tokenizer, 100, tmp_path)
    assert not (tmp_path / "manifest.json").exists()


def test_messages_may_have_their_fields_in_any_order_and_more_of_them(tokenizer, tmp_path):
    fields = [("name", pa.string()), ("content", pa.large_string()), ("tool_calls", pa.null()), ("role", pa.string_view())]
    rows = [[{"name": None, "content": "Hi.", "tool_calls": None, "role": "user"}]]
    _, requests, _ = stage_rows(pa.table({"messages": pa.array(rows, pa.large_list(pa.struct(fields)))}), tokenizer, tmp_path)
    assert prompts(requests, tokenizer) == ["user: Hi.\nassistant:"]


def test_messages_may_be_maps_or_have_text_parts(tokenizer, tmp_path):
    maps = pa.array([[[("role", "user"), ("content", "Hi.")]]], pa.list_(pa.map_(pa.string(), pa.string())))
    _, requests, _ = stage_rows(pa.table({"messages": maps}), tokenizer, tmp_path)
    assert prompts(requests, tokenizer) == ["user: Hi.\nassistant:"]
    texts = [
        '[{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i."}]}]',
        '[{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]',
        '{"role": "user", "content": "Hi."}',
        "[" * 5000,
    ]
    _, requests, errors = stage_rows({"messages": texts}, tokenizer, tmp_path)
    assert prompts(requests, tokenizer) == ["user: Hi.\nassistant:"]
    messages = [error["error"]["message"] for error in errors]
    assert messages[:2] == ["message 1 has content that is not text", "messages are a dict, not a list"]
    assert messages[2].startswith("messages are text, but not JSON")


def broken_text(rows):
    """Strings as a careless writer leaves them: Arrow's reader does not check that they are UTF-8."""
    return pa.array(rows, pa.binary()).view(pa.string())


def test_text_that_is_no_utf8_is_an_error_of_its_row_alone(tokenizer, tmp_path):
    _, requests, errors = stage_rows({"prompt": broken_text([b"ok", b"\xff", None])}, tokenizer, tmp_path)
    assert prompts(requests, tokenizer) == ["ok"]
    assert [error["error"]["message"][:20] for error in errors] == ["prompt is not UTF-8", "prompt is null, empt"]


def test_messages_that_are_no_utf8_are_errors_of_their_rows_alone(tokenizer, tmp_path):
    texts = broken_text([b"Hi.", b"\xff"])
    roles = pa.array([b"user", b"user"])
    messages = pa.StructArray.from_arrays([roles, texts], ["role", "content"])
    table = pa.table({"messages": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), messages)})
    _, requests, errors = stage_rows(table, tokenizer, tmp_path)
    assert prompts(requests, tokenizer) == ["user: Hi.\nassistant:"]
    assert errors[0]["error"]["message"] == "messages are not UTF-8"


MESSAGE_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["user", "system", "role", "Hi.", "\ud83d", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "tool_calls"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=30, deadline=None)
@given(rows=st.lists(st.lists(MESSAGE_LIKE, max_size=3) | MESSAGE_LIKE, min_size=20, max_size=20))
def test_any_json_is_a_conversation_or_the_error_of_its_row(tokenizer, tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("fuzz")
    manifest, requests, errors = stage_rows({"messages": [json.dumps(row) for row in rows]}, tokenizer, folder)
    assert manifest.num_sequences + manifest.num_errors == 20
    assert sorted([*requests.row.tolist(), *(error["row"] for error in errors)]) == list(range(20))
    assert all(error["error"]["type"] == "invalid_messages" for error in errors)


def test_conversations_of_different_shapes_in_json_lines_are_carried_as_text(tokenizer, tmp_path):
    lines = [
        {"messages": [{"role": "user", "content": "Hi."}], "k": 1},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Grüße"}]}]},
        {"messages": None},
        {"messages": [1, {"role": "user"}]},
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    stage_file(tmp_path / "x.jsonl", tokenizer, tmp_path / "staged")
    requests = RequestTable.load(tmp_path / "staged")
    assert prompts(requests, tokenizer) == ["user: Hi.\nassistant:", "user: Grüße\nassistant:"]
    assert errors_by_row(tmp_path / "staged") == {
        2: "messages are null or empty",
        3: "message 1 is 1, not an object with role and content",
    }
    carried = pq.read_table(tmp_path / "staged" / "input-00000.parquet")
    assert [text and json.loads(text) for text in carried.column("messages").to_pylist()] == [
        line["messages"] for line in lines
    ]
    assert carried.column("k").to_pylist() == [1, None, None, None]


def test_json_typed_messages_are_text(tokenizer, tmp_path):
    column = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['[{"role": "user", "content": "Hi."}]']))
    _, requests, _ = stage_rows(pa.table({"messages": column}), tokenizer, tmp_path)
    assert prompts(requests, tokenizer) == ["user: Hi.\nassistant:"]


def test_token_ids_are_taken_as_they_are(tokenizer, tmp_path):
    too_large = tokenizer.vocab_size
    lists = [[3, 1], None, [], [1, too_large], [-1], [2, None], [7]]
    _, requests, errors = stage_rows({"prompt_token_ids": lists}, tokenizer, tmp_path)
    assert [requests.prompt(i).tolist() for i in range(2)] == [[3, 1], [7]]
    assert [error["row"] for error in errors] == [1, 2, 3, 4, 5]
    assert f"from 0 to {too_large - 1}" in errors[2]["error"]["message"]


@pytest.mark.parametrize("lists", [pa.list_(pa.uint64(), 2), pa.large_list(pa.int8()), pa.list_view(pa.int32())])
def test_token_ids_may_come_in_any_type_of_list(lists, tokenizer, tmp_path):
    table = pa.table({"prompt_token_ids": pa.array([[1, 2], None, [3, 4]], lists)})
    _, requests, errors = stage_rows(table, tokenizer, tmp_path)
    assert [requests.prompt(i).tolist() for i in range(2)] == [[1, 2], [3, 4]]
    assert [error["row"] for error in errors] == [1]


def test_a_prompt_column_of_nulls_is_an_error_on_every_row(tokenizer, tmp_path):
    manifest, _, errors = stage_rows({"prompt": pa.nulls(2)}, tokenizer, tmp_path)
    assert (manifest.num_sequences, [error["row"] for error in errors]) == (0, [0, 1])


def test_duplicate_ids_are_found_across_parts_and_types(tokenizer, tmp_path):
    ids = pa.array([5, None, 6, None, 5]).dictionary_encode()
    with pytest.raises(ValueError, match=r"5 in rows 0, 4 \(counted from 0\)"):
        stage_rows(pa.table({"prompt": ["a"] * 5, "request_id": ids}), tokenizer, tmp_path)


def test_an_empty_default_stop_is_refused(tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"sampling\.stop"):
        stage_rows({"prompt": ["a"]}, tokenizer, tmp_path, sampling={"stop": [""]})


def test_stop_sets_and_stop_tokens_are_stored_once_each(tokenizer, tmp_path):
    rows = {"prompt": ["a", "b", "c"], "stop": [["x"], None, ["x"]], "stop_token_ids": [[1, 2], None, [3]], "n": [2, 1, 1]}
    _, requests, _ = stage_rows(rows, tokenizer, tmp_path, sampling={"temperature": 1.0})
    assert requests.sampling.stop_sets == ((), ("x",))
    assert requests.sampling.stop_set.tolist() == [1, 1, 0, 1]
    assert requests.sampling.stop_token_indptr.tolist() == [0, 2, 4, 4, 5]
    assert requests.sampling.stop_token_ids.tolist() == [1, 2, 1, 2, 3]


@settings(max_examples=50, deadline=None)
@given(
    seeds=st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
    run_seed=st.integers(-(2**63), 2**64),
)
def test_keys_of_random_numbers_follow_the_seed_of_the_row_or_else_the_row(seeds, run_seed):
    has_seed = np.array([seed is not None for seed in seeds])
    seed = np.array([seed or 0 for seed in seeds], dtype=np.int64).view(np.uint64)
    rows, samples = np.arange(len(seeds)), np.zeros(len(seeds), dtype=np.int32)
    keys = rng_keys(seed, has_seed, rows, samples, run_seed)
    wanted = {(value,) if value is not None else ("row", row) for row, value in enumerate(seeds)}
    assert len(set(keys.tolist())) == len(wanted)
    assert np.array_equal(keys[has_seed], rng_keys(seed, has_seed, rows + 7, samples, run_seed + 1)[has_seed])
    assert not np.any(keys == rng_keys(seed, has_seed, rows, samples + 1, run_seed))


def test_input_rows_are_kept_as_they_came(tokenizer, tmp_path):
    table = pa.table({"prompt": ["a", None], "x": pa.array([1, None], pa.uint8())})
    stage_rows(table, tokenizer, tmp_path)
    assert pq.read_table(tmp_path / "staged" / "input-00000.parquet").equals(table)
    assert RequestTable.load(tmp_path / "staged").num_requests == 1
    assert read_errors(tmp_path / "staged")[0]["finish_reason"] == "error"


def test_rows_with_a_bad_response_format_are_errors_and_equal_formats_are_kept_once(tokenizer, tmp_path):
    integer, regex = {"type": "json_schema", "json_schema": {"schema": '{"type": "integer"}'}}, {"type": "regex"}
    formats = [integer, {**regex, "regex": "[a-"}, None, {**regex, "regex": "a+"}, {"type": "xml"}, integer]
    rows = {"prompt": [f"p{i}" for i in range(len(formats))], "response_format": formats}
    manifest, table, errors = stage_rows(rows, tokenizer, tmp_path, sampling={"response_format": '{"type": "json_object"}'})
    assert {error["row"]: (error["error"]["type"], error["error"]["stage"]) for error in errors} == {
        1: ("invalid_response_format", "stage"),
        4: ("invalid_response_format", "stage"),
    }
    assert manifest.num_errors == 2
    assert table.sampling.response_format.tolist() == [0, 1, 2, 0]
    assert [response_format.kind for response_format in table.sampling.response_formats] == [
        "json_schema",
        "json_object",
        "regex",
    ]


def test_a_bad_default_response_format_ends_the_job_before_a_row_is_read(tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"response_format is \{\}; it must have a type"):
        stage_rows({"prompt": ["p"]}, tokenizer, tmp_path, sampling={"response_format": {}})


def test_a_column_called_parsed_stands_in_the_way_of_structured_output_alone(tokenizer, tmp_path):
    rows = {"prompt": ["p"], "parsed": [1]}
    stage_rows(rows, tokenizer, tmp_path)
    with pytest.raises(ValueError, match="the input has columns that the output adds: parsed"):
        stage_rows(rows, tokenizer, tmp_path, sampling={"response_format": '{"type": "json_object"}'})
