"""Where requests come from: one interface over Parquet, JSON Lines and Hugging Face datasets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from blendserve_core.data.files import InputFile, find_files, is_parquet
from blendserve_core.data.hugging_face import HuggingFaceSource, is_saved_dataset, looks_like_hub_id
from blendserve_core.data.jsonl import JsonlSource
from blendserve_core.data.parquet import ParquetSource
from schemas.parameters import JobParameters

# Options that only a Hugging Face dataset has.
DATASET_OPTIONS = ("dataset_config", "dataset_split", "dataset_revision", "dataset_streaming")


class Source(Protocol):
    """A dataset of requests. A row is known by its position over all batches.

    ``digest`` changes whenever the rows may have changed. ``batches`` can be called again and yields the same rows, at most a
    few thousand at a time, in ``without_views(schema)``.
    """

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def digest(self) -> str: ...

    def batches(self) -> Iterator[pa.RecordBatch]: ...

    def describe_rows(self, rows: list[int]) -> str:
        """Where the user finds these rows."""
        ...


def open_source(parameters: JobParameters) -> Source:
    """Find the requests of a job and check that they can be read; their rows are not read yet.

    Raises ValueError or OSError naming the file, and the column or line, where there is nothing to read.
    """
    requests = parameters.requests
    if any(getattr(parameters, name) for name in DATASET_OPTIONS) or is_saved_dataset(requests):
        return HuggingFaceSource.load(parameters)
    files = find_files(requests)
    if files:
        return _file_source(parameters, files)
    if looks_like_hub_id(requests) or Path(requests).is_dir():
        return HuggingFaceSource.load(parameters)
    raise FileNotFoundError(
        f"{requests}: no Parquet or JSON Lines file found. Give a file, a folder, a glob, a URI such as s3://bucket/folder, "
        "or the id of a Hugging Face dataset."
    )


def _file_source(parameters: JobParameters, files: list[InputFile]) -> Source:
    kinds = {is_parquet(file) for file in files}
    if len(kinds) == 2:
        raise ValueError(
            f"{parameters.requests}: holds both Parquet and JSON Lines files. Name one kind by a glob, such as '*.parquet'."
        )
    if kinds.pop():
        return ParquetSource(files, parameters.limit)
    return JsonlSource(files, parameters.limit, messages=parameters.columns.get("messages", "messages"))
