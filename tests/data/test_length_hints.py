import numpy as np
import pyarrow as pa
import pytest
from staging_helpers import errors_by_row, parameters, stage_rows

from blendserve_core.data.columns import resolve_columns
from blendserve_core.data.length_hints import check_group_column, read_length_hints


@pytest.fixture
def hints_of(tokenizer, tmp_path):
    def read(rows, group_column=None, **options):
        _, requests, _ = stage_rows(rows, tokenizer, tmp_path, **options)
        return read_length_hints(tmp_path / "staged", requests, parameters("x", group_column=group_column, **options))

    return read


PROMPTS = ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["x", "y", "x", None, None]),
        pa.array([2.5, 1.0, 2.5, None, None]),
        pa.array(["x", "y", "x", None, None]).dictionary_encode(),
        pa.array([[1, 2], [3], [1, 2], None, None]),
        pa.array([{"k": 1}, {"k": 2}, {"k": 1}, None, None]),
        pa.array(["x", "y", "x", None, None], pa.string_view()),
    ],
    ids=lambda column: str(column.type),
)
def test_equal_values_of_any_type_are_one_group_and_null_is_a_value(hints_of, column):
    group = hints_of(pa.table({"prompt": PROMPTS, "task": column}), "task").group
    assert group.dtype == np.int32
    assert [group.tolist().index(value) for value in group] == [0, 1, 0, 3, 3]


def test_a_group_spans_the_files_of_a_dataset(hints_of):
    num_rows = 9000  # more than one batch
    rows = {"prompt": [f"p{i}" for i in range(num_rows)], "my.task": ["x", "y"] * (num_rows // 2)}
    group = hints_of(rows, "my.task").group
    assert len(np.unique(group[::2])) == len(np.unique(group[1::2])) == 1
    assert group[0] != group[1]


def test_hints_belong_to_requests_not_to_rows(hints_of):
    rows = {"prompt": ["a", "", "c"], "n": [2, 1, 1], "task": ["x", "x", "y"], "expected_output_tokens": [7, 8, None]}
    rows["temperature"] = [1.0] * 3
    hints = hints_of(rows, "task")
    assert hints.group.tolist() == [0, 0, 1]
    assert hints.expected_output_tokens.tolist() == [7, 7, 0]


def test_without_hints_no_length_is_known(hints_of):
    hints = hints_of({"prompt": ["a", "b"]})
    assert hints.group is None
    assert hints.expected_output_tokens.tolist() == [0, 0]


def test_an_expected_length_may_have_another_name_and_be_a_mean(hints_of):
    rows = {"prompt": ["a", "b"], "frames": [36.6, 1e30]}
    hints = hints_of(rows, columns={"expected_output_tokens": "frames"})
    assert hints.expected_output_tokens.tolist() == [37, 2**31 - 1]


def test_an_expected_length_that_is_none_is_the_error_of_its_row(tokenizer, tmp_path):
    rows = {"prompt": ["a", "b", "c", "d"], "expected_output_tokens": [-3.0, float("nan"), None, 4.0]}
    _, requests, _ = stage_rows(rows, tokenizer, tmp_path)
    assert requests.row.tolist() == [2, 3]
    assert errors_by_row(tmp_path / "staged") == {
        0: "expected_output_tokens is -3.0; it must be at least 1",
        1: "expected_output_tokens is nan; it must be at least 1",
    }


def test_expected_lengths_in_words_are_refused():
    schema = pa.schema([("prompt", pa.string()), ("expected_output_tokens", pa.string())])
    with pytest.raises(ValueError, match="expected_output_tokens needs numbers"):
        resolve_columns(schema, {})


def test_a_group_column_that_is_not_there_is_refused_by_name():
    schema = pa.schema([("prompt", pa.string()), ("task", pa.string())])
    check_group_column(schema, "task")
    with pytest.raises(ValueError, match=r"no column 'tusk'\. The input has: prompt, task"):
        check_group_column(schema, "tusk")
