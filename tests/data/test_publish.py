import random
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from staging_helpers import answer_all, outcome, stage_rows

from blendserve_core.data import buckets as buckets_module
from blendserve_core.data.parts import Generation, PartWriter, TokenLogprob
from blendserve_core.data.publish import publish

OUTPUT_COLUMNS = [
    "request_id", "sample_index", "output_text", "output_token_ids", "finish_reason",
    "num_prompt_tokens", "num_cached_tokens", "num_output_tokens", "error",
]  # fmt: skip


def test_outcomes_return_to_input_order_whatever_order_they_finished_in(tokenizer, tmp_path):
    rows = {"prompt": [f"p{i}" if i % 7 else "" for i in range(500)], "n": [1 + i % 3 for i in range(500)]}
    manifest, requests, errors = stage_rows(rows, tokenizer, tmp_path, sampling={"temperature": 1.0})
    order = list(range(requests.num_requests))
    random.Random(0).shuffle(order)
    answer_all(tmp_path / "staged", tmp_path / "engine", max_rows=37, order=order)
    with patch.object(buckets_module, "MIN_BUCKET_ROWS", 64):
        counts = publish(tmp_path / "staged", [tmp_path / "engine"], tmp_path / "out.parquet")
    published = pq.read_table(tmp_path / "out.parquet").to_pylist()
    wanted = [
        (str(i), sample, f"answer {i}.{sample}" if i % 7 else None)
        for i in range(500)
        for sample in range(1 + i % 3 if i % 7 else 1)
    ]
    assert [(row["request_id"], row["sample_index"], row["output_text"]) for row in published] == wanted
    assert counts.num_rows == len(wanted) == manifest.num_sequences + manifest.num_errors
    assert counts.num_errors == len(errors) == 72
    assert counts.num_output_tokens == 2 * requests.num_requests
    assert counts.num_prompt_tokens == manifest.num_prompt_tokens


def test_the_schema_is_the_input_then_the_added_columns(tokenizer, tmp_path):
    stage_rows({"prompt": ["a"], "score": [0.5]}, tokenizer, tmp_path)
    answer_all(tmp_path / "staged", tmp_path / "engine")
    publish(tmp_path / "staged", [tmp_path / "engine"], tmp_path / "out.parquet")
    assert pq.read_schema(tmp_path / "out.parquet").names == ["prompt", "score", *OUTPUT_COLUMNS]


def test_the_first_of_two_outcomes_counts(tokenizer, tmp_path):
    _, requests, _ = stage_rows({"prompt": ["a", "b"]}, tokenizer, tmp_path)
    answer_all(tmp_path / "staged", tmp_path / "warm_up", order=[1])
    with PartWriter(tmp_path / "shard") as parts:
        parts.append(outcome(requests, 0))
        parts.append(Generation(1, 0, "late", [9], "stop", 1, 0, 1))
    counts = publish(tmp_path / "staged", [tmp_path / "warm_up", tmp_path / "shard"], tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").column("output_text").to_pylist() == ["answer 0.0", "answer 1.0"]
    assert (counts.num_rows, counts.num_surplus) == (2, 1)


def test_rows_without_an_outcome_are_named_and_nothing_is_published(tokenizer, tmp_path):
    stage_rows({"prompt": ["a", "b", "c"], "n": [1, 2, 1]}, tokenizer, tmp_path, sampling={"temperature": 1.0})
    answer_all(tmp_path / "staged", tmp_path / "engine", order=[0, 1])
    with pytest.raises(ValueError, match=r"2 sequences have no outcome yet; input rows \(from 0\): 1, 2\."):
        publish(tmp_path / "staged", [tmp_path / "engine"], tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_many_rows_become_a_folder_that_reads_as_one(tokenizer, tmp_path):
    stage_rows({"prompt": [f"p{i}" for i in range(300)]}, tokenizer, tmp_path)
    answer_all(tmp_path / "staged", tmp_path / "engine")
    (tmp_path / "out.parquet").write_text("an older file")
    publish(tmp_path / "staged", [tmp_path / "engine"], tmp_path / "out.parquet", max_file_rows=125)
    parts = sorted((tmp_path / "out.parquet").iterdir())
    assert [(part.name, pq.read_metadata(part).num_rows) for part in parts] == [
        ("part-00000.parquet", 125),
        ("part-00001.parquet", 125),
        ("part-00002.parquet", 50),
    ]
    texts = pq.read_table(tmp_path / "out.parquet").column("output_text").to_pylist()
    assert texts == [f"answer {row}.0" for row in range(300)]


def test_publishing_again_replaces_what_was_there(tokenizer, tmp_path):
    stage_rows({"prompt": ["a"]}, tokenizer, tmp_path)
    answer_all(tmp_path / "staged", tmp_path / "engine")
    (tmp_path / "out.parquet").mkdir()
    for _ in range(2):
        publish(tmp_path / "staged", [tmp_path / "engine"], tmp_path / "out.parquet")
        assert pq.read_table(tmp_path / "out.parquet").num_rows == 1
    assert not list(tmp_path.glob(".*"))


def test_logprobs_are_there_where_asked_for(tokenizer, tmp_path):
    stage_rows({"prompt": ["a", "b"], "logprobs": [1, None]}, tokenizer, tmp_path)
    with PartWriter(tmp_path / "engine") as parts:
        parts.append(Generation(0, 0, "x", [5], "stop", 1, 0, 1, logprobs=[TokenLogprob(5, -0.5, [5], [-0.5])]))
        parts.append(Generation(1, 0, "y", [6], "length", 1, 0, 1))
    publish(tmp_path / "staged", [tmp_path / "engine"], tmp_path / "out.parquet")
    published = pq.read_table(tmp_path / "out.parquet")
    assert published.column("logprobs").to_pylist() == [1, None]
    assert published.column("output_logprobs").to_pylist() == [
        [{"token_id": 5, "logprob": -0.5, "top_token_ids": [5], "top_logprobs": [-0.5]}],
        None,
    ]


def test_the_ids_of_the_input_keep_their_type(tokenizer, tmp_path):
    stage_rows(pa.table({"request_id": pa.array([7, 9], pa.int16()), "prompt": ["a", "b"]}), tokenizer, tmp_path)
    answer_all(tmp_path / "staged", tmp_path / "engine")
    publish(tmp_path / "staged", [tmp_path / "engine"], tmp_path / "out.parquet")
    published = pq.read_table(tmp_path / "out.parquet")
    assert published.column("request_id").type == pa.int16()
    assert published.column("request_id").to_pylist() == [7, 9]
