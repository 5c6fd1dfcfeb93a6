from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendserve_core.job.outputs import sample_texts
from schemas.arrow import ERROR_TYPE


@pytest.fixture(params=["one file", "a folder"])
def manifest(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Four rows with outputs of 3, 9, 1 and 5 tokens, and an error."""
    error = {"type": "empty_prompt", "message": "the prompt is empty", "stage": "stage"}
    rows = pa.table(
        {
            "output_text": ["three", "nine", "one", "five", None],
            "num_output_tokens": pa.array([3, 9, 1, 5, None], pa.int32()),
            "finish_reason": ["stop", "length", "stop", "stop", "error"],
            "error": pa.array([None, None, None, None, error], ERROR_TYPE),
        }
    )
    path = tmp_path / "generations.parquet"
    if request.param == "one file":
        pq.write_table(rows, path)
    else:
        path.mkdir()
        pq.write_table(rows.slice(0, 2), path / "part-000000.parquet")
        pq.write_table(rows.slice(2), path / "part-000001.parquet")
    return SimpleNamespace(generations=str(path), num_rows=5)


def test_sample_rows_go_from_the_shortest_output_to_the_longest(manifest: Any) -> None:
    (first, error), (second, middle), (third, longest) = sample_texts(manifest, num_rows=3)
    assert (first, second, third) == (4, 0, 1)
    assert "the prompt is empty" in error
    assert (middle, longest) == ("three", "nine")


def test_no_more_rows_are_shown_than_there_are(manifest: Any) -> None:
    assert sorted(row for row, _ in sample_texts(manifest, num_rows=100)) == [0, 1, 2, 3, 4]


def test_an_empty_text_is_shown_as_one_and_an_error_by_its_message(tmp_path: Path) -> None:
    error = {"type": "empty_prompt", "message": "the prompt is empty", "stage": "stage"}
    path = tmp_path / "generations.parquet"
    columns = {"output_text": ["", None], "num_output_tokens": pa.array([1, None], pa.int32()), "error": [None, error]}
    pq.write_table(pa.table(columns), path)
    texts = dict(sample_texts(SimpleNamespace(generations=str(path), num_rows=2), num_rows=2))
    assert texts == {0: "", 1: "[error: the prompt is empty]"}


def test_of_no_rows_nothing_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "generations.parquet"
    schema = pa.schema([("output_text", pa.string()), ("num_output_tokens", pa.int32()), ("error", ERROR_TYPE)])
    pq.write_table(schema.empty_table(), path)
    assert sample_texts(SimpleNamespace(generations=str(path), num_rows=0), num_rows=3) == []
