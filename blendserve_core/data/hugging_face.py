"""Hugging Face datasets: a hub id, a folder written by ``save_to_disk``, or any folder ``load_dataset`` understands."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from blendserve_core.data.batches import first_rows, listed, rows_of_size
from blendserve_core.data.files import JSONL_SUFFIXES, PARQUET_SUFFIXES
from blendserve_core.data.parquet_types import as_parquet_stores
from blendserve_core.data.unify import conform
from blendserve_core.data.views import without_views
from schemas.parameters import JobParameters

STREAMED_BATCH_ROWS = 256
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_SAVED_MARKS = ("state.json", "dataset_dict.json")


class HuggingFaceSource:
    """Rows of one split, batch by batch: from memory-mapped Arrow files, or from the hub as they arrive."""

    def __init__(self, name: str, dataset: Any, identity: object, rows_per_batch: int, limit: int | None = None) -> None:
        self._name = name
        self._dataset = dataset.with_format("arrow")
        self._identity = identity
        self._rows_per_batch = rows_per_batch
        self._limit = limit
        self.schema = as_parquet_stores(dataset.features.arrow_schema)
        self._read_schema = without_views(self.schema)

    @classmethod
    def load(cls, parameters: JobParameters) -> HuggingFaceSource:
        """Load a dataset by hub id or folder. Code that comes with a dataset is never run.

        Raises ValueError or OSError saying what there is instead, or that the hub cannot be reached.
        """
        if is_saved_dataset(parameters.requests):
            return cls._of_files(parameters, _load_saved(parameters.requests, parameters.dataset_split))
        if parameters.dataset_streaming:
            return cls._of_stream(parameters)
        return cls._of_files(parameters, _load(parameters))

    @classmethod
    def _of_files(cls, parameters: JobParameters, dataset: Any) -> HuggingFaceSource:
        rows_per_batch = rows_of_size(dataset.data.nbytes / max(dataset.num_rows, 1))
        return cls(parameters.requests, dataset, (dataset._fingerprint, dataset.num_rows), rows_per_batch, parameters.limit)

    @classmethod
    def _of_stream(cls, parameters: JobParameters) -> HuggingFaceSource:
        name = parameters.requests
        with _named(name):
            builder = _builder(parameters)
            streams = builder.as_streaming_dataset()
            split = _one_split(name, [str(known) for known in streams], parameters.dataset_split)
            # Of a dataset without declared columns the first rows tell them.
            stream = streams[split] if streams[split].features else streams[split]._resolve_features()
        files = builder.config.data_files[split].origin_metadata if builder.config.data_files else ()
        return cls(name, stream, (builder.hash, builder.config_id, split, files), STREAMED_BATCH_ROWS, parameters.limit)

    @property
    def digest(self) -> str:
        return hashlib.blake2b(repr((self._identity, str(self.schema))).encode(), digest_size=16).hexdigest()

    def batches(self) -> Iterator[pa.RecordBatch]:
        return first_rows(self._all_batches(), self._limit)

    def describe_rows(self, rows: list[int]) -> str:
        return f"rows {listed(rows)} (counted from 0)"

    def _all_batches(self) -> Iterator[pa.RecordBatch]:
        with _named(self._name):
            for table in self._dataset.iter(batch_size=self._rows_per_batch):
                for batch in table.combine_chunks().to_batches():
                    yield conform(batch, self._read_schema)


def is_saved_dataset(name: str) -> bool:
    return any((Path(name).expanduser() / mark).exists() for mark in _SAVED_MARKS)


def looks_like_hub_id(name: str) -> bool:
    """Whether a name may be a dataset on the hub, such as ``openai/gsm8k``."""
    is_file_name = name.lower().endswith(PARQUET_SUFFIXES + JSONL_SUFFIXES)
    return _HUB_ID.fullmatch(name) is not None and not is_file_name


def _load_saved(name: str, split: str | None) -> Any:
    import datasets  # takes seconds to import

    with _named(name):
        loaded = datasets.load_from_disk(str(Path(name).expanduser()))
    if isinstance(loaded, datasets.DatasetDict):
        return loaded[_one_split(name, [str(known) for known in loaded], split)]
    if split and str(loaded.split) != split:
        raise ValueError(f"{name}: holds the one split {str(loaded.split)!r}, not {split!r}.")
    return loaded


def _load(parameters: JobParameters) -> Any:
    """Fetch and convert the dataset into the cache of the library, and map it from there."""
    import datasets

    with _named(parameters.requests):
        loaded = datasets.load_dataset(
            parameters.requests,
            parameters.dataset_config,
            split=parameters.dataset_split,
            revision=parameters.dataset_revision,
        )
    if isinstance(loaded, datasets.DatasetDict):
        return loaded[_one_split(parameters.requests, [str(known) for known in loaded], None)]
    return loaded


def _builder(parameters: JobParameters) -> Any:
    import datasets

    return datasets.load_dataset_builder(parameters.requests, parameters.dataset_config, revision=parameters.dataset_revision)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Have whatever goes wrong with a dataset name it."""
    from datasets.exceptions import DatasetsError

    try:
        yield
    except OSError as error:
        raise FileNotFoundError(
            f"{name}: no Parquet or JSON Lines file here, and not to be had as a Hugging Face dataset: {error}"
        ) from error
    except (DatasetsError, pa.ArrowException) as error:
        cause = error.__cause__ or error
        raise ValueError(f"{name}: cannot be read as a Hugging Face dataset: {cause}") from error


def _one_split(name: str, splits: list[str], wanted: str | None) -> str:
    chosen = wanted or (splits[0] if len(splits) == 1 else None)
    if chosen not in splits:
        asked = f"no split {wanted!r}" if wanted else "several splits"
        raise ValueError(f"{name}: {asked}. Name one as the dataset split: {', '.join(splits)}.")
    return chosen
