import numpy as np
import pyarrow as pa
import pytest

from blendserve_core.data.sampling_columns import read_sampling
from schemas.parameters import SamplingDefaults

VOCAB = 100


def read(defaults=None, **columns):
    arrays = {name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()}
    batch = pa.RecordBatch.from_pydict(arrays)
    return read_sampling(batch, {name: name for name in columns}, defaults or SamplingDefaults(), VOCAB)


def test_null_and_absent_columns_mean_the_default():
    defaults = SamplingDefaults(max_tokens=7, temperature=0.5, logprobs=2, stop=["x"], stop_token_ids=[3], ignore_eos=True)
    sampling = read(defaults, max_tokens=[None, 9], stop=pa.array([None, ["y"]]), logprobs=pa.nulls(2))
    assert sampling.numbers["max_tokens"].tolist() == [7, 9]
    assert sampling.numbers["temperature"].tolist() == [0.5, 0.5]
    assert sampling.numbers["logprobs"].tolist() == [2, 2]
    assert sampling.stops == [("x",), ("y",)]
    assert sampling.stop_token_ids == [(3,), (3,)]
    assert sampling.ignore_eos.tolist() == [True, True]
    assert not sampling.errors


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        ("max_tokens", 0, "max_tokens is 0; it must be at least 1"),
        ("max_tokens", 1.5, "max_tokens is 1.5; it must be at least 1"),
        ("temperature", -0.1, "temperature is -0.1; it must be at least 0"),
        ("temperature", float("nan"), "temperature is nan; it must be at least 0"),
        ("temperature", float("inf"), "temperature is inf; it must be at least 0"),
        ("top_p", 0.0, "top_p is 0.0; it must be above 0 and at most 1"),
        ("top_p", 1.01, "top_p is 1.01; it must be above 0 and at most 1"),
        ("top_k", -2, "top_k is -2; it must be at least -1"),
        ("min_p", 1.5, "min_p is 1.5; it must be from 0 to 1"),
        ("repetition_penalty", 0.0, "repetition_penalty is 0.0; it must be above 0"),
        ("presence_penalty", 2.5, "presence_penalty is 2.5; it must be from -2 to 2"),
        ("n", 0, "n is 0; it must be from 1 to 1024"),
        ("n", 2**40, f"n is {2**40}; it must be from 1 to 1024"),
        ("logprobs", 50, "logprobs is 50; it must be from 0 to 20"),
        ("seed", 0.5, "seed is 0.5; it must be a whole number of 64 bits"),
        ("stop", ["ok", ""], "stop is ['ok', '']; it must be strings that are not empty"),
        ("stop", ["ok", None], "stop is ['ok', None]; it must be strings that are not empty"),
        ("stop_token_ids", [5, VOCAB], "stop_token_ids is [5, 100]; each must be from 0 to 99"),
    ],
)
def test_a_bad_value_is_the_error_of_its_row_alone(name, bad, message):
    sampling = read(**{name: pa.array([None, bad, None])})
    assert {row: error.message for row, error in sampling.errors.items()} == {1: message}


def test_the_first_thing_wrong_with_a_row_is_its_error():
    sampling = read(top_p=[2.0], max_tokens=[0])
    assert sampling.errors[0].message.startswith("max_tokens")


def test_seeds_keep_all_their_bits():
    seeds = [2**62 + 1, -5, None, 2**63 - 1, -(2**63)]
    sampling = read(seed=pa.array(seeds, pa.int64()))
    assert sampling.seed.view(np.int64)[[0, 1, 3, 4]].tolist() == [2**62 + 1, -5, 2**63 - 1, -(2**63)]
    assert sampling.has_seed.tolist() == [True, True, False, True, True]
    assert read(seed=pa.array([2**64 - 1], pa.uint64())).seed.tolist() == [2**64 - 1]


def test_whole_numbers_may_come_as_floats_or_decimals():
    assert read(max_tokens=[8.0, None]).numbers["max_tokens"].tolist() == [8, 256]
    sampling = read(temperature=pa.array(["0.5"]).cast(pa.decimal128(5, 2)))
    assert sampling.numbers["temperature"].tolist() == [0.5]


def test_a_stop_may_be_a_bare_string():
    sampling = read(stop=pa.array(["END", None, "x"]).dictionary_encode())
    assert sampling.stops == [("END",), (), ("x",)]


def test_an_empty_list_of_stops_overrides_the_default():
    sampling = read(SamplingDefaults(stop=["x"]), stop=pa.array([[], None], pa.list_(pa.string())))
    assert sampling.stops == [(), ("x",)]


def test_greedy_rows_ignore_what_narrows_the_choice():
    sampling = read(temperature=[0.0, 1.0], top_p=[0.5, 0.5], top_k=[5, -1], min_p=[0.1, 0.1])
    assert sampling.numbers["top_p"].tolist() == [1.0, 0.5]
    assert sampling.numbers["top_k"].tolist() == [0, 0]
    assert sampling.numbers["min_p"].tolist() == [0.0, 0.1]
