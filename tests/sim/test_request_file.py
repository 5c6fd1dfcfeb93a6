import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendserve_core.plan.build_tree import build_tree
from blendserve_core.sim.request_file import length_source, read_lengths, read_prompts
from blendserve_core.sim.workload import read_workload

MMLU = Path(__file__).parents[2] / "../shared/data/traces/mmlu_5shot.parquet"


@pytest.fixture
def write(tmp_path):
    def write_table(**columns):
        pq.write_table(pa.table(columns), tmp_path / "requests.parquet")
        return tmp_path / "requests.parquet"

    return write_table


def test_lengths_are_read_with_their_prefix_groups(write):
    prefix = {"prefix_group": ["a", None, "a"], "shared_prefix_tokens": [6, None, 4]}
    lengths = read_lengths(write(input_tokens=[9, 9, 4], output_tokens=[1, 2, 3], **prefix))
    np.testing.assert_array_equal(lengths.prefix_group, [0, -1, 0])
    np.testing.assert_array_equal(lengths.num_prefix_tokens, [6, 0, 4])


def test_groups_share_their_prefix_in_the_workload(write):
    prefix = {"prefix_group": [7, 7, 8], "shared_prefix_tokens": [6, 6, 6]}
    workload = read_workload(write(input_tokens=[9, 9, 9], output_tokens=[1, 2, 3], **prefix), None, seed=0)
    assert build_tree(workload.requests).num_unique_tokens == 27 - 6


def test_prompts_with_token_ids_are_taken_as_they_are(write):
    path = write(prompt_token_ids=[[5, 6], [7], [8, 9, 10]], output_tokens=[3, 1, 2])
    workload = read_workload(path, None, seed=0)
    assert [workload.requests.prompt(i).tolist() for i in range(3)] == [[5, 6], [7], [8, 9, 10]]
    np.testing.assert_array_equal(workload.true_output_tokens, [3, 1, 2])


def test_prompts_are_repeated_to_the_wanted_size(write):
    workload = read_workload(write(prompt_token_ids=[[5, 6], [7]], output_tokens=[3, 1]), 5, seed=0)
    assert sorted(workload.requests.num_prompt_tokens.tolist()) in ([1, 1, 1, 2, 2], [1, 1, 2, 2, 2])


def test_a_file_of_lengths_is_repeated_to_the_wanted_size(write):
    workload = read_workload(write(input_tokens=[4, 6], output_tokens=[3, 1]), 5, seed=0)
    assert workload.requests.num_requests == 5
    assert build_tree(workload.requests).num_unique_tokens == len(workload.requests.token_ids)


@pytest.mark.skipif(not MMLU.exists(), reason="the recorded length traces are not here")
def test_a_recorded_trace_is_a_source_like_the_synthetic_ones():
    lengths = length_source(str(MMLU))(5_000, np.random.default_rng(0))
    assert len(lengths) == 5_000
    assert len(np.unique(lengths.prefix_group)) == 57


def test_an_unknown_source_lists_the_synthetic_ones():
    with pytest.raises(ValueError, match="burst, wildchat, mmlu, openvid"):
        length_source("nowhere.parquet")


GROUPED = {"input_tokens": [5, 5], "output_tokens": [1, 1], "prefix_group": ["a", "a"]}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"input_tokens": [1]}, "no column 'output_tokens'; it has input_tokens"),
        ({"output_tokens": [1]}, "no column 'input_tokens'"),
        ({"input_tokens": [1, 1], "output_tokens": [4, 0]}, "column 'output_tokens', row 1 (from 0): 0 which is not between 1"),
        ({"input_tokens": [1, None], "output_tokens": [4, 3]}, "column 'input_tokens', row 1 (from 0): null"),
        ({"input_tokens": ["a"], "output_tokens": [4]}, "column 'input_tokens' has type string; whole numbers"),
        ({"input_tokens": [1.5], "output_tokens": [4]}, "column 'input_tokens' has type double"),
        ({"input_tokens": [2**40], "output_tokens": [4]}, "row 0 (from 0): 1099511627776 which is not between"),
        (GROUPED, "no column 'shared_prefix_tokens'"),
        (GROUPED | {"shared_prefix_tokens": [3, 9]}, "row 1 (from 0): 9 which is more than its input_tokens"),
        (GROUPED | {"shared_prefix_tokens": [3, None]}, "column 'shared_prefix_tokens', row 1 (from 0): null"),
    ],
)
def test_a_file_of_lengths_that_cannot_be_used_says_where(write, columns, message):
    with pytest.raises(ValueError, match=rf"requests\.parquet.*{re.escape(message)}"):
        read_lengths(write(**columns))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt_token_ids": [[1]]}, "no column 'output_tokens'"),
        ({"prompt_token_ids": [[1], []], "output_tokens": [1, 1]}, "row 1 (from 0): 0 tokens; give each prompt at least one"),
        ({"prompt_token_ids": [[1], None], "output_tokens": [1, 1]}, "row 1 (from 0): 0 tokens"),
        ({"prompt_token_ids": [[1], [2, -3]], "output_tokens": [1, 1]}, "row 1 (from 0): -3 which is no token id"),
        ({"prompt_token_ids": [[1], [2, None]], "output_tokens": [1, 1]}, "null in a list"),
        ({"prompt_token_ids": ["one"], "output_tokens": [1]}, "has type string; a list of token ids"),
        ({"prompt_token_ids": [["one"]], "output_tokens": [1]}, "has type string; whole numbers"),
    ],
)
def test_a_file_of_prompts_that_cannot_be_used_says_where(write, columns, message):
    with pytest.raises(ValueError, match=rf"requests\.parquet.*{re.escape(message)}"):
        read_prompts(write(**columns))


def test_what_is_no_parquet_file_is_called_by_its_name(tmp_path):
    (tmp_path / "requests.csv").write_text("input_tokens,output_tokens")
    with pytest.raises(ValueError, match=r"requests\.csv is no Parquet file"):
        read_workload(tmp_path / "requests.csv", None, seed=0)


def test_an_empty_file_is_refused(write):
    with pytest.raises(ValueError, match=r"requests\.parquet has no rows"):
        read_workload(write(input_tokens=pa.array([], pa.int32()), output_tokens=pa.array([], pa.int32())), None, seed=0)
