"""The Parquet files of tests/cases, each with what index.json says is right."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from staging_helpers import CASES, answer_all, errors_by_row, stage_file

from blendserve_core.data.publish import publish
from blendserve_core.requests import RequestTable


@pytest.fixture
def run_case(tokenizer, tmp_path):
    """Stage a case, answer all that can be served, publish; returns the published rows and the error messages by row."""

    def run(name, **options):
        stage_file(CASES / name, tokenizer, tmp_path / "staged", **options)
        answer_all(tmp_path / "staged", tmp_path / "engine")
        publish(tmp_path / "staged", [tmp_path / "engine"], tmp_path / "generations.parquet")
        return pq.read_table(tmp_path / "generations.parquet"), errors_by_row(tmp_path / "staged")

    return run


def test_null_empty_and_blank_prompts_are_error_rows_between_good_ones(run_case):
    published, errors = run_case("null_prompt.parquet")
    assert published.column("request_id").to_pylist() == ["a", "b", "c", "d", "e"]
    assert published.column("output_text").to_pylist() == ["answer 0.0", None, None, None, "answer 4.0"]
    assert published.column("finish_reason").to_pylist() == ["stop", "error", "error", "error", "stop"]
    assert list(errors) == [1, 2, 3]


def test_duplicate_ids_are_refused_by_name(tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"'x' in rows 0, 2.*'z' in rows 3, 4|'z' in rows 3, 4.*'x' in rows 0, 2"):
        stage_file(CASES / "duplicate_ids.parquet", tokenizer, tmp_path / "staged")
    assert not (tmp_path / "staged" / "manifest.json").exists()


@pytest.mark.parametrize("options", [{"columns": {"request_id": ""}}, {"on_duplicate_id": "keep"}])
def test_duplicate_ids_are_kept_where_asked_for(run_case, options):
    published, errors = run_case("duplicate_ids.parquet", **options)
    assert published.column("request_id").to_pylist() == ["x", "y", "x", "z", "z"]
    prompts = published.column("prompt").to_pylist()
    assert published.column("output_text").to_pylist() == [f"answer {prompts.index(prompt)}.0" for prompt in prompts]
    assert not errors


def test_equal_prompts_draw_by_their_own_seeds_and_an_equal_seed_is_computed_once(run_case, tmp_path):
    published, _ = run_case("duplicate_prompts.parquet")
    assert published.column("request_id").to_pylist() == [f"r{row}" for row in range(6)]
    assert published.column("output_text").to_pylist() == [f"answer {row}.0" for row in (0, 1, 2, 3, 4, 4)]
    requests = RequestTable.load(tmp_path / "staged")
    assert requests.row.tolist() == [0, 1, 2, 3, 4]
    assert len(set(requests.sampling.rng_key.tolist())) == 5


def test_bad_messages_get_errors_of_their_own(run_case):
    published, errors = run_case("bad_messages.parquet")
    assert published.num_rows == 11
    assert errors == {
        1: "message 1 has role None; known roles: system, developer, user, assistant, tool",
        2: "message 1 has no content",
        3: "messages are null or empty",
        4: "messages are null or empty",
        5: "message 1 has role 'wizard'; known roles: system, developer, user, assistant, tool",
        7: "messages have no user turn",
        9: "message 1 is None, not an object with role and content",
    }


def test_a_prompt_longer_than_the_context_is_an_error_of_its_row_alone(run_case):
    published, errors = run_case("overlong_prompt.parquet")
    assert published.column("request_id").to_pylist() == ["short1", "long", "short2"]
    assert published.column("finish_reason").to_pylist() == ["stop", "error", "stop"]
    assert "fit the context of 8192" in errors[1]
    assert published.column("error").to_pylist()[1]["type"] == "context_length_exceeded"


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_prompt_longer_than_the_context_is_cut_where_asked_for(run_case, tokenizer, tmp_path, side):
    published, errors = run_case("overlong_prompt.parquet", on_too_long=f"truncate-{side}")
    assert (published.column("finish_reason").to_pylist(), errors) == (["stop"] * 3, {})
    requests = RequestTable.load(tmp_path / "staged")
    _, prompt, _ = published.column("prompt").to_pylist()
    num_kept = 8192 - published.column("max_tokens").to_pylist()[1]
    kept = prompt[-num_kept:] if side == "left" else prompt[:num_kept]
    assert tokenizer.decode(requests.prompt(1).tolist()) == kept


def test_sampling_parameters_at_the_edges(run_case, tmp_path):
    published, errors = run_case("sampling_params.parquet")
    assert errors == {
        1: "top_p is 0.0; it must be above 0 and at most 1",
        2: "max_tokens is 0; it must be at least 1",
        3: "max_tokens is -1; it must be at least 1",
        6: "n is 0; it must be from 1 to 1024",
        10: "temperature is -0.5; it must be at least 0",
        12: "stop is ['']; it must be strings that are not empty",
    }
    assert published.num_rows == 16
    requests = RequestTable.load(tmp_path / "staged")
    by_row = {int(row): i for i, row in enumerate(requests.row)}
    assert requests.sampling.top_p[by_row[0]] == 1.0
    assert requests.sampling.max_tokens[by_row[4]] == 256
    texts = published.column("output_text").to_pylist()
    assert texts[11] == texts[0]  # no temperature is temperature 0, where top_p does not matter
    assert requests.sampling.stop_sets[requests.sampling.stop_set[by_row[13]]] == (" 5 6",)
    three = requests.row == 5
    assert requests.sample_index[three].tolist() == [0, 1, 2]
    assert len(set(requests.sampling.rng_key[three].tolist())) == 3


def test_zero_rows_give_an_output_with_the_schema(run_case):
    published, errors = run_case("zero_rows.parquet")
    assert published.num_rows == 0
    assert published.schema.names[:3] == ["request_id", "messages", "max_tokens"]
    assert published.schema.field("error").type == pa.struct(
        [("type", pa.string()), ("message", pa.string()), ("stage", pa.string())]
    )
    assert not errors


def test_a_file_without_columns_has_no_prompt(tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"no prompt column.*no columns"):
        stage_file(CASES / "no_columns.parquet", tokenizer, tmp_path)


def test_an_empty_file_is_named(tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"empty\.parquet: not a Parquet file"):
        stage_file(CASES / "empty.parquet", tokenizer, tmp_path)


def test_one_big_row_group_comes_out_whole(run_case):
    published, errors = run_case("one_big_row_group.parquet")
    assert published.column("request_id").to_pylist() == [f"q{i:05d}" for i in range(60_000)]
    assert published.column("output_text").to_pylist() == [f"answer {i}.0" for i in range(60_000)]
    assert not errors


def test_large_strings_and_lists_are_ordinary_text(run_case):
    published, errors = run_case("large_string.parquet")
    assert published.column("output_text").to_pylist() == ["answer 0.0", "answer 1.0"]
    assert published.schema.field("request_id").type == pa.large_string()
    assert not errors


def test_binary_prompts_are_utf8_or_an_error(run_case):
    published, errors = run_case("binary_prompt.parquet")
    assert published.column("output_text").to_pylist() == ["answer 0.0", None]
    assert published.schema.field("prompt").type == pa.binary()
    assert errors == {1: "prompt is not UTF-8"}


def test_unicode_prompts_reach_the_model_and_the_output_byte_for_byte(run_case, tokenizer, tmp_path):
    published, errors = run_case("unicode.parquet")
    prompts = published.column("prompt").to_pylist()
    requests = RequestTable.load(tmp_path / "staged")
    assert [tokenizer.decode(requests.prompt(i).tolist()) for i in range(10)] == prompts
    assert prompts == pq.read_table(CASES / "unicode.parquet").column("prompt").to_pylist()
    assert not errors


def test_columns_of_many_types_pass_through(run_case):
    published, _ = run_case("passthrough_types.parquet")
    given = pq.read_table(CASES / "passthrough_types.parquet")
    carried = published.select(given.schema.names)
    assert carried.schema.equals(given.schema, check_metadata=False)
    assert carried.to_pydict().__repr__() == given.to_pydict().__repr__()


def test_columns_called_as_the_output_stop_the_job(tokenizer, tmp_path):
    with pytest.raises(ValueError, match="output_text, finish_reason, error"):
        stage_file(CASES / "column_collision.parquet", tokenizer, tmp_path)


def test_messages_may_be_json_text(run_case):
    published, errors = run_case("messages_as_json_string.parquet")
    assert published.column("output_text").to_pylist() == ["answer 0.0", None]
    assert list(errors) == [1]
    assert "not JSON" in errors[1]


def test_drifting_schemas_are_read_as_one(run_case):
    published, errors = run_case("schema_drift")
    assert published.column("request_id").to_pylist() == [1, 2, 3, 1099511627776, 5]
    assert published.column("tag").to_pylist() == [None, None, "x", "y", None]
    assert published.schema.field("request_id").type == pa.int64()
    assert published.schema.field("tag").type == pa.string()
    assert not errors


def test_hive_partitions_become_columns_and_stray_files_are_passed_over(run_case):
    published, errors = run_case("hive")
    assert published.column("request_id").to_pylist() == ["e1", "p1"]
    assert published.column("lang").to_pylist() == ["en", "pt"]
    assert not errors
