"""Publish: every input row and sample with its outcome, in input order beside the input's own columns."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from blendserve_core.data.batches import num_batch_rows
from blendserve_core.data.buckets import Buckets, grouped
from blendserve_core.data.durable import put_in_place, temporary_path
from blendserve_core.data.outcomes import ORIGIN_FIELD, all_outcomes, check_outcomes
from blendserve_core.data.output_schema import added_names, output_schema
from blendserve_core.data.parsed_column import ParsedColumn
from blendserve_core.data.publish_counts import OutcomeCounter
from blendserve_core.data.rolling import RollingWriter
from blendserve_core.data.row_digests import PublishedDigests, StagedRows
from blendserve_core.data.staged_files import MANIFEST_FILE, input_parts
from blendserve_core.data.unify import conform
from blendserve_core.data.views import without_views
from schemas.arrow import GENERATION_SCHEMA
from schemas.manifest import PublishCounts, StageManifest

MAX_FILE_ROWS = 1_000_000
MAX_FILE_BYTES = 2 << 30
RUN_KEY = "blendserve.run"


@dataclass(frozen=True, slots=True)
class _Layout:
    """The output's schema, and the names in it of the columns of outcomes, which follow the input's own.

    ``parsed`` comes last, where some texts are structured.
    """

    schema: pa.Schema
    added: dict[str, str]
    parsed: ParsedColumn

    @property
    def outcome_schema(self) -> pa.Schema:
        """What is gathered of each outcome before it meets its row."""
        names = ["row", *(column for column in self.added if column != "request_id")]
        return pa.schema([*(GENERATION_SCHEMA.field(name) for name in names), ORIGIN_FIELD])


def publish(
    staged: Path,
    engine_folders: Iterable[Path],
    output: Path,
    *,
    run: str = "",
    reuse_key: str = "",
    max_file_rows: int = MAX_FILE_ROWS,
) -> PublishCounts:
    """Write the generations to ``output``: one Parquet file, or a folder of them beyond ``max_file_rows``.

    Outcomes are the error rows of ``staged``, those that it took over from an earlier run, and the part files of
    ``engine_folders``; duplicates get a copy. One row per input row and sample, whose first outcome counts. Beside it go the
    digests of all rows; both say which ``run`` wrote them. Raises ValueError naming rows that have no outcome, and where the
    output would not hold every input row; ``output`` appears only when it is whole.
    """
    folders = list(engine_folders)
    num_rows, num_surplus = check_outcomes(staged, folders)
    layout = _layout(staged)
    working = temporary_path(output)
    shutil.rmtree(working, ignore_errors=True)
    working.mkdir(parents=True)
    buckets = _fill_buckets(working, staged, folders, layout)
    counter = OutcomeCounter(StagedRows.load(staged))
    with RollingWriter(working, "part", layout.schema, max_file_rows, MAX_FILE_BYTES, {RUN_KEY: run}) as writer:
        for table in grouped(_output_batches(staged, buckets, layout, counter), without_views(layout.schema)):
            writer.write(table)
    counts = counter.reconciled(StageManifest.read(staged / MANIFEST_FILE).num_requests, num_rows, num_surplus)
    PublishedDigests(run, reuse_key, counter.digests).write(digests_path(output))
    _replace(output, working, writer.paths)
    return counts


def digests_path(output: Path) -> Path:
    """Beside the generations: by it the next run knows the rows that it need not generate again."""
    return output.with_name("row_digests.npz")


def published_parts(output: Path) -> list[Path]:
    """The files of published generations, in order."""
    return sorted(output.glob("*.parquet")) if output.is_dir() else [output]


def run_of(output: Path) -> str | None:
    """The run that published these generations; None where there are none, or none that say."""
    try:
        metadata = pq.read_metadata(published_parts(output)[0]).metadata or {}
    except (OSError, IndexError, ValueError):
        return None
    run = metadata.get(RUN_KEY.encode())
    return run.decode() if run else None


def _layout(staged: Path) -> _Layout:
    manifest = StageManifest.read(staged / MANIFEST_FILE)
    own = pq.read_schema(input_parts(staged)[0])
    has_request_id, wants_logprobs = manifest.has_request_id, manifest.wants_logprobs
    parsed = ParsedColumn.of_staged(staged)
    return _Layout(
        output_schema(own, has_request_id=has_request_id, wants_logprobs=wants_logprobs, parsed_type=parsed.data_type),
        added_names(own, has_request_id=has_request_id, wants_logprobs=wants_logprobs),
        parsed,
    )


def _fill_buckets(working: Path, staged: Path, folders: list[Path], layout: _Layout) -> Buckets:
    schema = layout.outcome_schema
    num_rows = sum(pq.read_metadata(part).num_rows for part in input_parts(staged))
    buckets = Buckets(working, schema, num_rows)
    buckets.add(all_outcomes(staged, folders, schema))
    buckets.close()
    return buckets


def _output_batches(staged: Path, buckets: Buckets, layout: _Layout, counter: OutcomeCounter) -> Iterator[pa.RecordBatch]:
    """Input rows joined with their outcomes, in input order; counts what passes."""
    bucket, outcomes = -1, None
    for first_row, batch in _input_slices(staged, buckets.bucket_rows):
        if first_row // buckets.bucket_rows != bucket or outcomes is None:
            bucket = first_row // buckets.bucket_rows
            outcomes = buckets.load(bucket)
        rows = outcomes.column("row").to_numpy()
        start, end = np.searchsorted(rows, [first_row, first_row + batch.num_rows])
        own_outcomes = outcomes.slice(start, end - start)
        counter.add(own_outcomes)
        yield _join(batch, first_row, own_outcomes, layout)


def _input_slices(staged: Path, bucket_rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The input's rows in batches that do not cross a bucket's edge, with the number of their first row."""
    first_row = 0
    for batch in _input_batches(staged):
        offset = 0
        while offset < batch.num_rows:
            num_rows = min(batch.num_rows - offset, bucket_rows - first_row % bucket_rows)
            yield first_row, batch.slice(offset, num_rows)
            offset, first_row = offset + num_rows, first_row + num_rows


def _input_batches(staged: Path) -> Iterator[pa.RecordBatch]:
    for path in input_parts(staged):
        with pq.ParquetFile(path) as part:
            for batch in part.iter_batches(batch_size=num_batch_rows(part.metadata)):
                yield conform(batch, without_views(batch.schema))


def _join(batch: pa.RecordBatch, first_row: int, outcomes: pa.Table, layout: _Layout) -> pa.RecordBatch:
    """One output row per outcome, each beside the row of the batch it belongs to."""
    rows = outcomes.column("row").to_numpy()
    is_one_each = len(rows) == batch.num_rows
    own = batch if is_one_each else batch.take(pa.array(rows - first_row))
    added = [_request_ids(rows) if name == "request_id" else _whole(outcomes.column(name)) for name in layout.added]
    if layout.parsed.data_type is not None:
        added.append(layout.parsed.values(rows, outcomes.column("output_text").to_pylist()))
    return pa.RecordBatch.from_arrays([*own.columns, *added], schema=without_views(layout.schema))


def _request_ids(rows: NDArray[np.int64]) -> pa.Array:
    return pa.array(rows).cast(pa.string())


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


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
