"""One schema for files whose schemas differ, where every value survives; refused otherwise."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.types as pat

from blendserve_core.data.arrow_types import ListLike, fields_of, is_bytes, is_number, is_text


class NoCommonType(ValueError):
    """Values of one column that no type holds without loss."""


def unify_schemas(schemas: Iterable[tuple[str, pa.Schema]], *, exact: bool = True) -> pa.Schema:
    """Schema that holds the rows of all files: columns of the first file, then new ones as they appear.

    ``schemas`` are pairs of file name and schema. Columns are matched by name; one that a file lacks is null there. Raises
    NoCommonType, a ValueError, naming the column and both files where two types have none. ``exact`` as in :func:`common_type`.
    """
    fields: dict[str, pa.Field] = {}
    origins: dict[str, str] = {}
    names_by_file: list[set[str]] = []
    for file, schema in schemas:
        _refuse_repeated_names(file, schema)
        names_by_file.append(set(schema.names))
        for field in schema:
            known = fields.get(field.name)
            try:
                fields[field.name] = field if known is None else _common_field(known, field, exact)
            except TypeError as error:
                raise NoCommonType(
                    f"column {field.name!r} is {field.type} in {file}, but {known.type if known else None} in "
                    f"{origins[field.name]}: {error}. Write both files with one type, or name only files that agree."
                ) from error
            origins.setdefault(field.name, file)
    return pa.schema([_nullable_unless_everywhere(field, names_by_file) for field in fields.values()])


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows in a unified schema."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    present = set(batch.schema.names)
    columns = [
        _cast(batch.column(field.name), field.type) if field.name in present else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def common_type(a: pa.DataType, b: pa.DataType, *, exact: bool = True) -> pa.DataType:
    """The type that holds every value of both. Raises TypeError where there is none.

    Not ``exact``: integers and floats become float64 whatever their sizes, and reading the values tells whether they fit.
    """
    if a.equals(b):
        return a
    if pat.is_null(a) or pat.is_null(b):
        return b if pat.is_null(a) else a
    if pat.is_dictionary(a) or pat.is_dictionary(b):
        return common_type(_undictionaried(a), _undictionaried(b), exact=exact)
    if is_text(a) and is_text(b):
        return pa.large_string()
    if is_bytes(a) and is_bytes(b):
        return pa.large_binary()
    if is_number(a) and is_number(b):
        return _common_number(a, b, exact)
    if isinstance(a, ListLike) and isinstance(b, ListLike):
        return _common_list(a, b, exact)
    if isinstance(a, pa.StructType) and isinstance(b, pa.StructType):
        return _common_struct(a, b, exact)
    raise TypeError("no type holds both without loss")


def _cast(column: pa.Array, data_type: pa.DataType) -> pa.Array:
    if column.type.equals(data_type):
        return column
    if pat.is_dictionary(column.type):
        return _cast(column.cast(column.type.value_type), data_type)
    return column.cast(data_type)


def _common_field(a: pa.Field, b: pa.Field, exact: bool) -> pa.Field:
    return a.with_type(common_type(a.type, b.type, exact=exact)).with_nullable(a.nullable or b.nullable)


def _nullable_unless_everywhere(field: pa.Field, names_by_file: list[set[str]]) -> pa.Field:
    return field if all(field.name in names for names in names_by_file) else field.with_nullable(True)


def _common_number(a: pa.DataType, b: pa.DataType, exact: bool) -> pa.DataType:
    """The smallest number type that holds both exactly: integers as far as the float's mantissa goes."""
    order = [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    order += [pa.float16(), pa.float32(), pa.float64()]
    for candidate in order:
        if _holds(candidate, a) and _holds(candidate, b):
            return candidate
    if not exact:
        return pa.float64()
    raise TypeError("no number type holds both without loss")


def _holds(outer: pa.DataType, inner: pa.DataType) -> bool:
    mantissa_bits = {16: 11, 32: 24, 64: 53}
    if pat.is_floating(outer):
        bits = mantissa_bits[outer.bit_width]
        return mantissa_bits[inner.bit_width] <= bits if pat.is_floating(inner) else _magnitude_bits(inner) <= bits
    if pat.is_floating(inner) or (pat.is_signed_integer(inner) and not pat.is_signed_integer(outer)):
        return False
    return _magnitude_bits(inner) <= _magnitude_bits(outer)


def _magnitude_bits(integer: pa.DataType) -> int:
    return integer.bit_width - pat.is_signed_integer(integer)


def _common_list(a: ListLike, b: ListLike, exact: bool) -> pa.DataType:
    value = _common_field(a.value_field, b.value_field, exact)
    if isinstance(a, pa.FixedSizeListType) and isinstance(b, pa.FixedSizeListType) and a.list_size == b.list_size:
        return pa.list_(value, a.list_size)
    return pa.list_(value) if pat.is_list(a) and pat.is_list(b) else pa.large_list(value)


def _common_struct(a: pa.StructType, b: pa.StructType, exact: bool) -> pa.DataType:
    fields = {field.name: field for field in fields_of(a)}
    in_both = set(fields) & {field.name for field in fields_of(b)}
    for field in fields_of(b):
        fields[field.name] = _common_field(fields[field.name], field, exact) if field.name in in_both else field
    return pa.struct([field if name in in_both else field.with_nullable(True) for name, field in fields.items()])


def _undictionaried(data_type: pa.DataType) -> pa.DataType:
    return data_type.value_type if isinstance(data_type, pa.DictionaryType) else data_type


def _refuse_repeated_names(file: str, schema: pa.Schema) -> None:
    repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if repeated:
        raise ValueError(f"{file}: more than one column is called {repeated[0]!r}. Rename all but one.")
