"""Publish: every input row and sample with its outcome, in input order beside the input's own columns."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from blendserve_core.data.batches import num_batch_rows
from blendserve_core.data.buckets import Buckets, grouped
from blendserve_core.data.durable import put_in_place, temporary_path
from blendserve_core.data.output_schema import added_names, output_schema
from blendserve_core.data.parts import finished_keys, read_generations, read_parts
from blendserve_core.data.rolling import RollingWriter
from blendserve_core.data.staged_files import ERRORS_FILE, MANIFEST_FILE, input_parts
from blendserve_core.data.unify import conform
from blendserve_core.requests import RequestTable
from schemas.arrow import GENERATION_SCHEMA
from schemas.manifest import StageManifest

MAX_FILE_ROWS = 1_000_000
MAX_FILE_BYTES = 2 << 30
_NUM_NAMED = 10


class PublishCounts(TypedDict):
    """Output rows by outcome and their tokens; ``num_duplicates`` outcomes were on disk twice and left out."""

    num_rows: int
    num_errors: int
    num_duplicates: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int


def publish(staged: Path, engine_folders: Iterable[Path], output: Path, *, max_file_rows: int = MAX_FILE_ROWS) -> PublishCounts:
    """Write the generations to ``output``, one Parquet file, or a folder of them from ``max_file_rows`` on.

    Outcomes are the error rows of ``staged`` and the part files of ``engine_folders``. One row per input row and sample, whose
    first outcome counts. Raises ValueError naming rows that have none; ``output`` appears only when it is whole.
    """
    folders = list(engine_folders)
    manifest = StageManifest.read(staged / MANIFEST_FILE)
    expected = _expected_keys(staged)
    num_found = _require_all(expected, staged, folders)
    working = temporary_path(output)
    shutil.rmtree(working, ignore_errors=True)
    working.mkdir(parents=True)
    input_schema = pq.read_schema(input_parts(staged)[0])
    schema = output_schema(input_schema, has_request_id=manifest.has_request_id, wants_logprobs=manifest.wants_logprobs)
    counts = PublishCounts(
        num_rows=len(expected), num_errors=0, num_duplicates=num_found - len(expected),
        num_prompt_tokens=0, num_cached_tokens=0, num_output_tokens=0,
    )  # fmt: skip
    buckets = _fill_buckets(working, staged, folders, manifest)
    with RollingWriter(working, "part", schema, max_file_rows, MAX_FILE_BYTES) as writer:
        for table in grouped(_output_batches(staged, buckets, schema, manifest, counts), schema):
            writer.write(table)
    _replace(output, working, writer.paths)
    return counts


def _expected_keys(staged: Path) -> NDArray[np.int64]:
    """[num_rows, 2] row and sample index of every outcome the job owes, in output order."""
    requests = RequestTable.load(staged)
    rows = [batch.column("row").to_numpy() for batch in read_generations(staged / ERRORS_FILE, ["row"])]
    bad = np.concatenate([np.zeros(0, dtype=np.int64), *rows])
    keys = np.concatenate(
        [
            np.stack([requests.row, requests.sample_index.astype(np.int64)], axis=1),
            np.stack([bad, np.zeros_like(bad)], axis=1),
        ]
    )
    return keys[np.argsort(keys[:, 0], kind="stable")]


def _require_all(expected: NDArray[np.int64], staged: Path, folders: list[Path]) -> int:
    """Check that each expected outcome is on disk; returns how many there are, with those that came twice."""
    rows, samples = finished_keys(folders)
    stride = 1 + int(max(expected[:, 1].max(initial=0), samples.max(initial=0)))
    bad = pq.read_table(staged / ERRORS_FILE, columns=["row"]).column("row").to_numpy()
    wanted = expected[:, 0] * stride + expected[:, 1]
    found = np.concatenate([rows * stride + samples, bad * stride])
    missing = wanted[~np.isin(wanted, found)]
    if len(missing):
        named = ", ".join(str(row) for row in np.unique(missing // stride)[:_NUM_NAMED])
        raise ValueError(
            f"{len(missing)} sequences have no outcome yet; input rows (from 0): {named}"
            f"{' and more' if len(missing) > _NUM_NAMED else ''}. Run the job again to generate them."
        )
    assert np.isin(found, wanted).all(), "an outcome of a request that is not in the job"
    return len(found)


def _fill_buckets(working: Path, staged: Path, folders: list[Path], manifest: StageManifest) -> Buckets:
    columns = [name for name in GENERATION_SCHEMA.names if name != "logprobs" or manifest.wants_logprobs]
    schema = pa.schema([GENERATION_SCHEMA.field(name) for name in columns])
    buckets = Buckets(working, schema, manifest.num_requests)
    buckets.add(conform(batch, schema) for batch in read_generations(staged / ERRORS_FILE, columns))
    buckets.add(conform(batch, schema) for batch in read_parts(folders, columns))
    buckets.close()
    return buckets


def _output_batches(
    staged: Path, buckets: Buckets, schema: pa.Schema, manifest: StageManifest, counts: PublishCounts
) -> Iterator[pa.RecordBatch]:
    """Input rows joined with their outcomes, in input order; counts what passes."""
    bucket, loaded = -1, None
    for first_row, batch in _input_slices(staged, buckets.bucket_rows):
        if first_row // buckets.bucket_rows != bucket or loaded is None:
            bucket = first_row // buckets.bucket_rows
            loaded = buckets.load(bucket)
        table, rows, _ = loaded
        start, end = np.searchsorted(rows, [first_row, first_row + batch.num_rows])
        outcomes = table.slice(start, end - start)
        _count(counts, outcomes)
        yield _join(batch, rows[start:end] - first_row, first_row, outcomes, schema, manifest)


def _input_slices(staged: Path, bucket_rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The input's rows in batches that do not cross a bucket's edge, with the number of their first row."""
    first_row = 0
    for path in input_parts(staged):
        with pq.ParquetFile(path) as part:
            num_bytes = sum(part.metadata.row_group(i).total_byte_size for i in range(part.metadata.num_row_groups))
            for batch in part.iter_batches(batch_size=num_batch_rows(num_bytes, part.metadata.num_rows)):
                offset = 0
                while offset < batch.num_rows:
                    num_rows = min(batch.num_rows - offset, bucket_rows - first_row % bucket_rows)
                    yield first_row, batch.slice(offset, num_rows)
                    offset, first_row = offset + num_rows, first_row + num_rows


def _join(
    batch: pa.RecordBatch,
    positions: NDArray[np.int64],
    first_row: int,
    outcomes: pa.Table,
    schema: pa.Schema,
    manifest: StageManifest,
) -> pa.RecordBatch:
    """One output row per outcome; ``positions`` says which row of the batch each belongs to."""
    is_one_each = len(positions) == batch.num_rows
    own = batch.columns if is_one_each else [_take(column, positions) for column in batch.columns]
    names = added_names(batch.schema, has_request_id=manifest.has_request_id, wants_logprobs=manifest.wants_logprobs)
    added = [
        pa.array(first_row + positions).cast(pa.string()) if name == "request_id" else _whole(outcomes.column(name))
        for name in names
    ]
    return pa.RecordBatch.from_arrays([*own, *added], schema=schema)


def _take(column: pa.Array, positions: NDArray[np.int64]) -> pa.Array:
    try:
        return column.take(pa.array(positions))
    except pa.ArrowNotImplementedError:  # string and binary views
        return pa.concat_arrays([column.slice(position, 1) for position in positions.tolist()])


def _whole(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def _count(counts: PublishCounts, outcomes: pa.Table) -> None:
    reasons = np.asarray(outcomes.column("finish_reason").to_pylist())
    counts["num_errors"] += int((reasons == "error").sum())
    counts["num_prompt_tokens"] += _sum(outcomes, "num_prompt_tokens")
    counts["num_cached_tokens"] += _sum(outcomes, "num_cached_tokens")
    counts["num_output_tokens"] += _sum(outcomes, "num_output_tokens")


def _sum(table: pa.Table, name: str) -> int:
    return int(table.column(name).fill_null(0).to_numpy().sum(dtype=np.int64))


def _replace(output: Path, working: Path, parts: list[Path]) -> None:
    """Put the finished file, or the folder of files, under its final name."""
    for bucket in working.glob("bucket-*.arrow"):
        bucket.unlink()
    if output.is_dir():
        shutil.rmtree(output)
    if len(parts) == 1:
        put_in_place(parts[0], output)
        working.rmdir()
    else:
        output.unlink(missing_ok=True)
        put_in_place(working, output)
