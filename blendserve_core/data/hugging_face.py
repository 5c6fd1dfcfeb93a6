"""Hugging Face datasets: a hub id, a folder written by ``save_to_disk``, or any folder ``load_dataset`` understands."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from blendserve_core.data.batches import first_rows, listed, rows_of_size
from blendserve_core.data.files import JSONL_SUFFIXES, PARQUET_SUFFIXES
from blendserve_core.data.parquet_types import as_parquet_stores
from blendserve_core.data.unify import conform
from blendserve_core.data.views import without_views

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_SAVED_MARKS = ("state.json", "dataset_dict.json")


class HuggingFaceSource:
    """Rows of one split, read batch by batch from its memory-mapped Arrow files."""

    def __init__(self, dataset: Any, limit: int | None = None) -> None:
        self._dataset = dataset.with_format("arrow")
        self._limit = limit
        self.schema = as_parquet_stores(dataset.features.arrow_schema)
        self._read_schema = without_views(self.schema)

    @classmethod
    def load(cls, name: str, split: str | None, revision: str | None, limit: int | None) -> HuggingFaceSource:
        """Load a dataset by hub id or folder. Code that comes with a dataset is never run."""
        import datasets  # takes seconds to import

        if is_saved_dataset(name):
            loaded = datasets.load_from_disk(str(Path(name).expanduser()))
        else:
            loaded = _load(name, split, revision)
        if isinstance(loaded, datasets.DatasetDict):
            loaded = loaded[_one_split(name, [str(known) for known in loaded], split)]
        elif split and str(loaded.split) != split and is_saved_dataset(name):
            raise ValueError(f"{name}: holds the one split {str(loaded.split)!r}, not {split!r}.")
        return cls(loaded, limit)

    @property
    def digest(self) -> str:
        identity = (self._dataset._fingerprint, self._dataset.num_rows, str(self.schema))
        return hashlib.blake2b(repr(identity).encode(), digest_size=16).hexdigest()

    def batches(self) -> Iterator[pa.RecordBatch]:
        return first_rows(self._all_batches(), self._limit)

    def describe_rows(self, rows: list[int]) -> str:
        return f"rows {listed(rows)} (counted from 0)"

    def _all_batches(self) -> Iterator[pa.RecordBatch]:
        for table in self._dataset.iter(batch_size=self._rows_per_batch()):
            for batch in table.combine_chunks().to_batches():
                yield conform(batch, self._read_schema)

    def _rows_per_batch(self) -> int:
        data = self._dataset.data
        return rows_of_size(data.nbytes / max(data.num_rows, 1))


def is_saved_dataset(name: str) -> bool:
    return any((Path(name).expanduser() / mark).exists() for mark in _SAVED_MARKS)


def looks_like_hub_id(name: str) -> bool:
    """Whether a name may be a dataset on the hub, such as ``openai/gsm8k``."""
    is_file_name = name.lower().endswith(PARQUET_SUFFIXES + JSONL_SUFFIXES)
    return _HUB_ID.fullmatch(name) is not None and not is_file_name


def _load(name: str, split: str | None, revision: str | None) -> Any:
    import datasets

    try:
        return datasets.load_dataset(name, split=split, revision=revision)
    except OSError as error:
        raise FileNotFoundError(
            f"{name}: no Parquet or JSON Lines file here, and not to be had as a Hugging Face dataset: {error}"
        ) from error


def _one_split(name: str, splits: list[str], wanted: str | None) -> str:
    chosen = wanted or (splits[0] if len(splits) == 1 else None)
    if chosen not in splits:
        asked = f"no split {wanted!r}" if wanted else "several splits"
        raise ValueError(f"{name}: {asked}. Name one as the dataset split: {', '.join(splits)}.")
    return chosen
