import pyarrow as pa
import pytest

from blendserve_core.data.unify import common_type, conform, unify_schemas


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        (pa.null(), pa.date32(), pa.date32()),
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.uint32(), pa.int32(), pa.int64()),
        (pa.uint8(), pa.uint16(), pa.uint16()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.string(), pa.string_view(), pa.large_string()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string(), pa.string()),
        (pa.binary(), pa.large_binary(), pa.large_binary()),
        (pa.list_(pa.int8()), pa.list_(pa.int32()), pa.list_(pa.int32())),
        (pa.list_(pa.null()), pa.large_list(pa.bool_()), pa.large_list(pa.bool_())),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int16(), 2), pa.list_(pa.int16(), 2)),
        (
            pa.struct([("a", pa.int8()), ("b", pa.string())]),
            pa.struct([("c", pa.bool_()), ("a", pa.int64())]),
            pa.struct([("a", pa.int64()), ("b", pa.string()), ("c", pa.bool_())]),
        ),
    ],
)
def test_two_types_have_the_smallest_type_that_holds_both(a, b, wanted):
    assert common_type(a, b) == wanted
    if not pa.types.is_struct(a):
        assert common_type(b, a) == wanted


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (pa.int64(), pa.uint64()),
        (pa.int64(), pa.float64()),
        (pa.string(), pa.binary()),
        (pa.string(), pa.int64()),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
        (pa.decimal128(9, 2), pa.decimal128(9, 3)),
        (pa.list_(pa.string()), pa.list_(pa.int8())),
    ],
)
def test_types_without_a_lossless_common_one_are_refused(a, b):
    with pytest.raises(TypeError, match="without loss"):
        common_type(a, b)


def test_a_column_that_a_file_lacks_is_nullable():
    must = pa.schema([pa.field("a", pa.int8(), nullable=False), pa.field("b", pa.int8(), nullable=False)])
    unified = unify_schemas([("x", must), ("y", must.remove(1))])
    assert [field.nullable for field in unified] == [False, True]


def test_rows_conform_to_wider_types_in_another_order():
    batch = pa.RecordBatch.from_pydict({"s": [{"y": 1}], "t": pa.array(["a"]).dictionary_encode(), "n": pa.nulls(1)})
    struct = pa.struct([("x", pa.string()), ("y", pa.float64())])
    schema = pa.schema([("t", pa.large_string()), ("new", pa.bool_()), ("n", pa.int8()), ("s", struct)])
    wanted = {"t": ["a"], "new": [None], "n": [None], "s": [{"x": None, "y": 1.0}]}
    assert conform(batch, schema).to_pydict() == wanted
