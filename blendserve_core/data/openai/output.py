"""The published generations once more, as the batch format's output file and error file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from blendserve_core.data.batches import num_batch_rows
from blendserve_core.data.durable import written_whole
from blendserve_core.data.openai.lines import BODY, CUSTOM_ID, URL
from blendserve_core.data.openai.responses import Job, Row, is_error, to_line

_COLUMNS = (
    CUSTOM_ID, URL, BODY, "sample_index", "output_text", "finish_reason",
    "num_prompt_tokens", "num_cached_tokens", "num_output_tokens", "error",
)  # fmt: skip
_SEPARATORS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}


class BatchCounts(NamedTuple):
    """Lines of the output file and of the error file."""

    num_served: int
    num_errors: int


def write_batch_files(generations: Path, output: Path, errors: Path, job: Job) -> BatchCounts:
    """Write each request's line into ``output``, or into ``errors`` if it failed, in the order of the input.

    ``generations`` is a Parquet file or a folder of them, read as a stream. Both files appear when they are whole; without an
    error there is no file of them.
    """
    counts = [0, 0]
    with ExitStack() as stack:
        served = stack.enter_context(stack.enter_context(written_whole(output)).open("wb"))
        failed = stack.enter_context(stack.enter_context(written_whole(errors)).open("wb"))
        for number, samples in enumerate(_requests(generations)):
            (failed if is_error(samples) else served).write(_encode(to_line(number, samples, job)))
            counts[is_error(samples)] += 1
    if not counts[True]:
        errors.unlink()
    return BatchCounts(*counts)


def _encode(line: dict[str, Any]) -> bytes:
    """UTF-8, in which whatever some reader takes for the end of a line is escaped."""
    return json.dumps(line, ensure_ascii=False).translate(_SEPARATORS).encode() + b"\n"


def _requests(generations: Path) -> Iterator[list[Row]]:
    """Rows of one request after the other: those of sample 0 begin a new one."""
    samples: list[Row] = []
    for row in _rows(generations):
        if row["sample_index"] == 0 and samples:
            yield samples
            samples = []
        samples.append(row)
    if samples:
        yield samples


def _rows(generations: Path) -> Iterator[Row]:
    for path in sorted(generations.glob("*.parquet")) if generations.is_dir() else [generations]:
        with pq.ParquetFile(path) as part:
            present = part.schema_arrow.names
            logprobs = next((name for name in ("output_logprobs", "logprobs") if name in present), None)
            wanted = [name for name in (*_COLUMNS, logprobs) if name in present]
            for batch in part.iter_batches(batch_size=num_batch_rows(part.metadata), columns=wanted):
                yield from batch.rename_columns(
                    ["logprobs" if name == logprobs else name for name in batch.schema.names]
                ).to_pylist()
