"""Part files: finished sequences reach the disk as they finish, and are found again after whatever ended the process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from time import monotonic

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from blendserve_core.data.durable import written_whole
from blendserve_core.data.generation import Generation, TokenLogprob, to_table
from blendserve_core.data.journal import Journal
from blendserve_core.requests import RequestTable

__all__ = ["Generation", "PartWriter", "TokenLogprob", "finished_keys", "finished_requests", "read_generations", "read_parts"]


class PartWriter:
    """Writes generations into ``part-<n>.parquet`` files of a folder, numbered on from those already there.

    A part is written when ``max_rows`` generations wait, or when the oldest of them has waited ``max_delay_s``. Generations
    that wait are in the folder's journal, so that a killed process loses none; :func:`recover` makes a part of them. A failed
    write can be tried again. Leaving the context flushes.
    """

    def __init__(self, folder: Path, max_rows: int = 512, max_delay_s: float = 5.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._max_rows = max_rows
        self._max_delay_s = max_delay_s
        self._journal = Journal(folder)
        self._waiting: list[pa.Table] = []
        self._waiting_since = 0.0

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, generation: Generation) -> None:
        self.extend([generation])

    def extend(self, generations: Iterable[Generation]) -> None:
        """Take finished sequences, none or more, and write a part if one is due; worth a call even when none finished."""
        if not self._waiting:
            self._waiting_since = monotonic()
        if finished := list(generations):
            self._waiting.append(to_table(finished))
            self._journal.append(self._waiting[-1])
        is_late = monotonic() - self._waiting_since >= self._max_delay_s
        if self._waiting and (is_late or sum(rows.num_rows for rows in self._waiting) >= self._max_rows):
            self.flush()

    def flush(self) -> None:
        """Put what waits on disk, as one part."""
        if self._waiting:
            write_part(self._folder, pa.concat_tables(self._waiting))
            self._waiting = []
        self._journal.clear()

    def close(self) -> None:
        self.flush()


def write_part(folder: Path, rows: pa.Table) -> Path:
    """Write generations as the next part of a folder and return its path. Raises DiskFull."""
    number = 1 + max((int(path.stem.split("-")[1]) for path in part_paths([folder])), default=-1)
    part = folder / f"part-{number:06d}.parquet"
    with written_whole(part) as path:
        pq.write_table(rows, path, compression="zstd", write_page_checksum=True)
    return part


def read_parts(folders: Iterable[Path], columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Generations of all part files, folder by folder in order of their numbers. Half-written files are passed over."""
    for path in part_paths(folders):
        yield from read_generations(path, columns)


def read_generations(path: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Generations of one file, a thousand at a time. Raises ValueError naming a file that cannot be read."""
    try:
        with pq.ParquetFile(path) as part:
            yield from part.iter_batches(batch_size=1024, columns=columns)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: cannot be read: {error}. Remove it to have its rows generated again.") from error


def finished_keys(folders: Iterable[Path]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """(row, sample_index) of every generation on disk, in the order of :func:`read_parts`."""
    rows, samples = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int32)]
    for batch in read_parts(folders, ["row", "sample_index"]):
        rows.append(batch.column("row").to_numpy())
        samples.append(batch.column("sample_index").to_numpy())
    return np.concatenate(rows), np.concatenate(samples)


def finished_requests(requests: RequestTable, folders: Iterable[Path]) -> NDArray[np.bool_]:
    """[num_requests] whether a request's outcome is on disk."""
    rows, samples = finished_keys(folders)
    is_finished = np.zeros(requests.num_requests, dtype=np.bool_)
    if not requests.num_requests:
        return is_finished
    stride = 1 + max(int(requests.sample_index.max()), int(samples.max(initial=0)))
    known = requests.row * stride + requests.sample_index
    wanted = rows * stride + samples
    positions = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    is_finished[positions[known[positions] == wanted]] = True
    return is_finished


def part_paths(folders: Iterable[Path]) -> list[Path]:
    """Part files, folder by folder in order of their numbers."""
    return [path for folder in folders for path in sorted(folder.glob("part-*.parquet"))]
