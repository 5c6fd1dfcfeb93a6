"""JSON Lines, plain or gzip: the columns and types are those of all lines together, each line is an object."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from blendserve_core.data.batches import MAX_BATCH_BYTES, MAX_BATCH_ROWS, first_rows
from blendserve_core.data.files import InputFile, digest_of
from blendserve_core.data.json_text import parse_json
from blendserve_core.data.openai.lines import as_row, is_batch_line
from blendserve_core.data.parquet_types import as_parquet_stores
from blendserve_core.data.unify import NoCommonType, unify_schemas

MAX_NAMED = 5
_BOM = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_UNREADABLE = (ValueError, TypeError, OverflowError, pa.ArrowException)


class Line(NamedTuple):
    """An object and where it stands, as ``file, line 3``."""

    place: str
    value: dict[str, Any]
    num_bytes: int


class JsonlSource:
    """Rows of JSON Lines files. The schema needs a pass over all lines, made when first asked for; a key may come late.

    Raises ValueError naming file and line for a line that is no JSON object, and for a value whose type no other row's shares.
    Only conversations (column ``messages``) may differ in shape from row to row; they are then carried as JSON text, and so is
    ``body`` where the first line is a request of the batch format.
    """

    def __init__(self, files: list[InputFile], limit: int | None = None, messages: str = "messages") -> None:
        self._files = files
        self._limit = limit
        self._messages = messages
        self._keeps_messages_as_text = False
        self._schema: pa.Schema | None = None

    @property
    def digest(self) -> str:
        return digest_of(self._files)

    @cached_property
    def is_batch(self) -> bool:
        """Whether the lines are requests of the batch format, as the first one tells."""
        first = next(self._lines(), None)
        if first is None:
            raise self._no_requests()
        return is_batch_line(first.value)

    @property
    def schema(self) -> pa.Schema:
        if self._schema is None:
            try:
                self._schema = self._read_schema()
            except NoCommonType:
                self._keeps_messages_as_text = True
                self._schema = self._read_schema()
        return self._schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        row_type = pa.struct(list(self.schema))
        batches = (pa.RecordBatch.from_struct_array(_rows(lines, row_type)) for lines in self._chunks())
        return first_rows(batches, self._limit)

    def describe_rows(self, rows: list[int]) -> str:
        """Files and lines, found by reading them again."""
        wanted = set(rows[:MAX_NAMED])
        places = (line.place for row, line in zip(range(max(wanted) + 1), self._lines(), strict=False) if row in wanted)
        return "; ".join(places) + (" and more" if len(rows) > MAX_NAMED else "")

    def _read_schema(self) -> pa.Schema:
        schemas = ((lines[0].place, _schema_of(lines)) for lines in self._chunks())
        schema = unify_schemas(schemas, exact=False)
        if not schema.names:
            raise self._no_requests()
        return as_parquet_stores(schema)

    def _no_requests(self) -> ValueError:
        return ValueError(f"{', '.join(file.path for file in self._files[:MAX_NAMED])}: no requests in it")

    def _chunks(self) -> Iterator[list[Line]]:
        return _chunked(map(self._as_row, self._lines()))

    def _lines(self) -> Iterator[Line]:
        return (line for file in self._files for line in _lines(file))

    def _as_row(self, line: Line) -> Line:
        if self.is_batch:
            return line._replace(value=as_row(line.value))
        return self._with_text(line) if self._keeps_messages_as_text else line

    def _with_text(self, line: Line) -> Line:
        messages = line.value.get(self._messages)
        if messages is None or isinstance(messages, str):
            return line
        return line._replace(value=line.value | {self._messages: json.dumps(messages, ensure_ascii=False)})


def _lines(file: InputFile) -> Iterator[Line]:
    number = 0
    try:
        with file.open() as raw, _decompressed(raw) as stream:
            for number, text in enumerate(stream, start=1):
                place = f"{file.path}, line {number}"
                text = text.removeprefix(_BOM) if number == 1 else text
                if text.strip():
                    yield Line(place, _parse(place, text), len(text))
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{file.path}, line {number + 1}: cannot be read on from here: {error}") from error


def _decompressed(raw: Any) -> Any:
    """By the first bytes: a name that ends in ``.gz`` proves nothing."""
    magic = raw.read(2)
    raw.seek(0)
    return gzip.open(raw) if magic == _GZIP_MAGIC else raw


def _parse(place: str, text: bytes) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except ValueError as error:
        raise ValueError(f"{place}: not JSON: {error}. Mend or drop the line.") from error
    if not isinstance(value, dict):
        raise ValueError(f"{place}: a JSON {type(value).__name__}, where each line must be an object.")
    return value


def _chunked(lines: Iterable[Line]) -> Iterator[list[Line]]:
    chunk: list[Line] = []
    num_bytes = 0
    for line in lines:
        chunk.append(line)
        num_bytes += line.num_bytes
        if len(chunk) >= MAX_BATCH_ROWS or num_bytes >= MAX_BATCH_BYTES:
            yield chunk
            chunk, num_bytes = [], 0
    if chunk:
        yield chunk


def _schema_of(lines: list[Line]) -> pa.Schema:
    try:
        return pa.schema(list(pa.array([line.value for line in lines]).type))
    except _UNREADABLE:
        return unify_schemas(((line.place, _schema_of_one(line)) for line in lines), exact=False)


def _schema_of_one(line: Line) -> pa.Schema:
    try:
        return pa.schema(list(pa.array([line.value]).type))
    except _UNREADABLE as error:
        raise NoCommonType(f"{line.place}: {error}") from error


def _rows(lines: list[Line], row_type: pa.DataType) -> pa.StructArray:
    try:
        return pa.array([line.value for line in lines], row_type)
    except _UNREADABLE:
        for line in lines:
            _row(line, row_type)
        raise


def _row(line: Line, row_type: pa.DataType) -> None:
    try:
        pa.array([line.value], row_type)
    except _UNREADABLE as error:
        raise ValueError(f"{line.place}: {error}") from error
