"""Whatever else a dataset carries comes out as it went in."""

import datetime
import math
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from staging_helpers import answer_all, stage_rows

from blendserve_core.data.publish import publish

LEAVES = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint8(), st.integers(0, 255)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.uint32(), st.integers(0, 2**32 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float16(), st.floats(width=16).map(np.float16)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=5)),
    (pa.large_string(), st.text(max_size=5)),
    (pa.string_view(), st.text(max_size=20)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.binary_view(), st.binary(max_size=20)),
    (pa.large_binary(), st.binary(max_size=5)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.decimal128(9, 3), st.decimals(-99999, 99999, places=3)),
    (pa.decimal128(38, 10), st.decimals(-(10**20), 10**20, places=10)),
    (pa.decimal256(50, 2), st.decimals(-(10**40), 10**40, places=2)),
    (pa.date32(), st.dates()),
    (pa.time32("ms"), st.integers(0, 86_399_999)),
    (pa.timestamp("ms"), st.integers(-(2**40), 2**40)),
    (pa.timestamp("us", tz="Europe/Berlin"), st.datetimes(timezones=st.just(datetime.UTC))),
    (pa.timestamp("ns"), st.integers(-(2**62), 2**62)),
    (pa.duration("us"), st.timedeltas(datetime.timedelta(-99), datetime.timedelta(99))),
    (pa.time64("us"), st.times()),
    (pa.dictionary(pa.int32(), pa.string()), st.text(max_size=3)),
    (pa.list_view(pa.int32()), st.lists(st.integers(0, 9), max_size=3)),
    (pa.list_(pa.int8(), 2), st.lists(st.integers(0, 9), min_size=2, max_size=2)),
    (pa.null(), st.none()),
]


def nested(leaves):
    """Lists, structs and maps over types with their values."""
    pairs = st.sampled_from(leaves[:-1])  # casting nested nulls is broken in Arrow itself
    return st.recursive(
        pairs,
        lambda inner: st.one_of(
            inner.map(lambda pair: (pa.list_(pair[0]), st.lists(pair[1] | st.none(), max_size=3))),
            inner.map(lambda pair: (pa.large_list(pair[0]), st.lists(pair[1], max_size=3))),
            inner.map(lambda pair: (pa.struct([pa.field("x", pair[0])]), st.fixed_dictionaries({"x": pair[1] | st.none()}))),
            inner.map(lambda pair: (pa.map_(pa.string(), pair[0]), st.lists(st.tuples(st.text(max_size=3), pair[1])))),
        ),
        max_leaves=3,
    )


@st.composite
def carried_columns(draw):
    num_rows = draw(st.integers(1, 6))
    columns = {}
    for number, (data_type, values) in enumerate(draw(st.lists(nested(LEAVES) | st.just(LEAVES[-1]), min_size=1, max_size=3))):
        rows = draw(st.lists(values | st.none(), min_size=num_rows, max_size=num_rows))
        columns[f"carried {number}"] = pa.array(rows, data_type)
    columns["prompt"] = pa.array(draw(st.lists(st.sampled_from(["a", "", None, "bc"]), min_size=num_rows, max_size=num_rows)))
    columns["n"] = pa.array(draw(st.lists(st.integers(1, 3), min_size=num_rows, max_size=num_rows)))
    return pa.table(columns)


@settings(max_examples=25, deadline=None)
@given(table=carried_columns())
def test_carried_columns_come_out_with_their_types_and_values(tokenizer, table):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stage_rows(table, tokenizer, folder)
        answer_all(folder / "staged", folder / "engine", max_rows=2)
        publish(folder / "staged", [folder / "engine"], folder / "out.parquet")
        given_rows = pq.read_table(folder / "requests.parquet")
        published = pq.read_table(folder / "out.parquet")
    carried = published.select(table.schema.names)
    assert carried.schema.equals(given_rows.schema)
    repeats = [row["n"] if row["prompt"] else 1 for row in table.select(["prompt", "n"]).to_pylist()]
    wanted = [value for value, times in zip(_plain(given_rows), repeats, strict=True) for _ in range(times)]
    assert _plain(carried) == wanted


def test_extension_types_are_kept(tokenizer, tmp_path):
    columns = {
        "prompt": pa.array(["a", "b"]),
        "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"k": 1}', None])),
        "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(range(16)), None], pa.binary(16))),
    }
    stage_rows(pa.table(columns), tokenizer, tmp_path)
    answer_all(tmp_path / "staged", tmp_path / "engine")
    publish(tmp_path / "staged", [tmp_path / "engine"], tmp_path / "out.parquet")
    published = pq.read_table(tmp_path / "out.parquet")
    for name, column in columns.items():
        assert published.schema.field(name).type == column.type
        assert published.column(name).to_pylist() == column.to_pylist()


def test_field_metadata_is_kept_and_schema_metadata_is_not(tokenizer, tmp_path):
    field = pa.field("score", pa.float64(), metadata={"unit": "points"})
    schema = pa.schema([("prompt", pa.string()), field], metadata={"pandas": "{}"})
    stage_rows(pa.table([["a"], [0.5]], schema=schema), tokenizer, tmp_path)
    answer_all(tmp_path / "staged", tmp_path / "engine")
    publish(tmp_path / "staged", [tmp_path / "engine"], tmp_path / "out.parquet")
    published = pq.read_schema(tmp_path / "out.parquet")
    assert published.field("score").metadata[b"unit"] == b"points"
    assert b"pandas" not in (published.metadata or {})


def _plain(table):
    """Rows as text, in which NaN equals itself and -0.0 differs from 0.0."""
    return [repr(row) for row in table.to_pylist(maps_as_pydicts=None)]


def test_plain_rows_tell_signs_of_zero_apart():
    assert _plain(pa.table({"x": [math.nan]})) == _plain(pa.table({"x": [math.nan]}))
    assert _plain(pa.table({"x": [0.0]})) != _plain(pa.table({"x": [-0.0]}))
