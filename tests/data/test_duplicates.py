"""Rows that ask for the same: one request, and its outcome for each of them."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from staging_helpers import answer_all, outcome, stage_rows

from blendserve_core.data.parts import Generation, PartWriter
from blendserve_core.data.publish import publish
from blendserve_core.requests import RequestTable


@pytest.fixture
def published(tokenizer, tmp_path):
    """Stages rows, answers what is left to do, publishes; returns the output's rows and its counts."""

    def run(rows, **options):
        stage_rows(rows, tokenizer, tmp_path, **options)
        answer_all(tmp_path / "staged", tmp_path / "engine")
        counts = publish(tmp_path / "staged", [tmp_path / "engine"], tmp_path / "out.parquet")
        return pq.read_table(tmp_path / "out.parquet").to_pylist(), counts

    return run


def texts(rows):
    return [row["output_text"] for row in rows]


def test_greedy_rows_with_one_prompt_are_computed_once_whatever_their_seeds(published):
    rows, counts = published({"prompt": ["a", "b", "a", "a"], "seed": [1, 2, 3, None], "topic": [1, 2, 3, 4]})
    assert texts(rows) == ["answer 0.0", "answer 1.0", "answer 0.0", "answer 0.0"]
    assert [row["topic"] for row in rows] == [1, 2, 3, 4]
    assert (counts.num_rows, counts.num_duplicate_rows) == (4, 2)


def test_sampled_rows_share_an_outcome_only_with_a_seed_of_their_own(published):
    rows, counts = published({"prompt": ["a"] * 5, "temperature": [1.0] * 5, "seed": [7, None, 7, None, 8]})
    assert texts(rows) == ["answer 0.0", "answer 1.0", "answer 0.0", "answer 3.0", "answer 4.0"]
    assert counts.num_duplicate_rows == 1


def test_samples_of_a_row_are_work_of_their_own_and_pair_up_with_those_of_its_twin(published):
    rows, _ = published({"prompt": ["a", "a"], "temperature": [1.0, 1.0], "seed": [7, 7], "n": [2, 3]})
    assert texts(rows) == ["answer 0.0", "answer 0.1", "answer 0.0", "answer 0.1", "answer 1.2"]
    assert [row["sample_index"] for row in rows] == [0, 1, 0, 1, 2]


def test_other_parameters_are_other_work(published):
    _, counts = published({"prompt": ["a"] * 3, "max_tokens": [4, 5, 4], "stop": [None, None, ["x"]]})
    assert counts.num_duplicate_rows == 0


def test_an_error_reaches_every_row_that_shares_it(tokenizer, tmp_path):
    stage_rows({"prompt": ["a", "b", "a"]}, tokenizer, tmp_path)
    requests = RequestTable.load(tmp_path / "staged")
    error = {"type": "capacity", "message": "too large", "stage": "generate"}
    with PartWriter(tmp_path / "engine") as parts:
        parts.extend([Generation(0, 0, None, None, "error", 1, 0, 0, error=error), outcome(requests, 1)])
    counts = publish(tmp_path / "staged", [tmp_path / "engine"], tmp_path / "out.parquet")
    assert [row["error"] for row in pq.read_table(tmp_path / "out.parquet").to_pylist()] == [error, None, error]
    assert (counts.outcomes, counts.errors) == ({"error": 2, "stop": 1}, {"capacity": 2})


def test_what_was_computed_is_counted_apart_from_what_was_delivered(published):
    rows, counts = published({"prompt": ["aaaa", "bb", "aaaa", ""]})
    assert (counts.num_prompt_tokens, counts.num_output_tokens) == (10, 6)
    assert (counts.num_served_prompt_tokens, counts.num_served_output_tokens) == (6, 4)
    assert [row["num_cached_tokens"] for row in rows] == [1, 1, 4, None]
    assert counts.num_served_cached_tokens == 2


def test_a_missing_outcome_is_named_by_the_row_that_is_to_be_computed(tokenizer, tmp_path):
    stage_rows({"prompt": ["a", "b", "b"]}, tokenizer, tmp_path)
    answer_all(tmp_path / "staged", tmp_path / "engine", order=[0])
    with pytest.raises(ValueError, match=r"1 sequences have no outcome yet; input rows \(from 0\): 1\."):
        publish(tmp_path / "staged", [tmp_path / "engine"], tmp_path / "out.parquet")


def test_one_prompt_in_very_many_rows_is_one_request(published):
    rows, counts = published({"prompt": ["a"] * 10_000, "number": np.arange(10_000)})
    assert counts.num_duplicate_rows == 9_999
    assert [row["number"] for row in rows] == list(range(10_000))
    assert set(texts(rows)) == {"answer 0.0"}


def test_duplicates_have_the_parsed_value_of_the_row_they_share(tokenizer, tmp_path):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
    rows = {
        "prompt": ["a", "b", "a"],
        "response_format": [json.dumps({"type": "json_schema", "json_schema": {"schema": schema}})] * 3,
    }
    stage_rows(rows, tokenizer, tmp_path)
    with PartWriter(tmp_path / "engine") as parts:
        parts.extend(Generation(row, 0, f'{{"a": {row}}}', [1], "stop", 1, 0, 1) for row in (0, 1))
    publish(tmp_path / "staged", [tmp_path / "engine"], tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet")["parsed"].to_pylist() == [{"a": 0}, {"a": 1}, {"a": 0}]
