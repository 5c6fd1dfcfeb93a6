"""Digests of the work behind rows: of a staged job's, and beside published generations, for the next run to compare."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blendserve_core.data.durable import save_arrays
from blendserve_core.data.staged_files import ROWS_FILE


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Every (row [S], sample_index [S]) that can be served, in rising order of both, with what the output says of it: digest of
    its work [S, 2], and the response format that it asks for [S], -1 for none."""

    row: NDArray[np.int64]
    sample_index: NDArray[np.int32]
    digest: NDArray[np.uint64]
    response_format: NDArray[np.int32]

    def save(self, folder: Path) -> None:
        save_arrays(folder / ROWS_FILE, **asdict(self))

    @classmethod
    def load(cls, folder: Path) -> StagedRows:
        with np.load(folder / ROWS_FILE) as arrays:
            return cls(**arrays)

    def digests_of(self, row: NDArray[np.int64], sample_index: NDArray[np.int32]) -> NDArray[np.uint64]:
        """[K, 2] digests of these outcomes; zero for rows that could not be served."""
        stride = 1 + int(max(self.sample_index.max(initial=0), sample_index.max(initial=0)))
        known = np.append(self.row * stride + self.sample_index, -1)
        wanted = row * stride + sample_index
        position = np.searchsorted(known[:-1], wanted)
        is_known = known[position] == wanted
        digests = np.zeros((len(row), 2), dtype=np.uint64)
        digests[is_known] = self.digest[position[is_known]]
        return digests


@dataclass(frozen=True, slots=True)
class PublishedDigests:
    """Digest [num_rows, 2] of each published row, in order; zero where it could not be served.

    ``run`` published them, and ``reuse_key`` stands for all that an outcome depends on beside the work in a digest.
    """

    run: str
    reuse_key: str
    digest: NDArray[np.uint64]

    def write(self, path: Path) -> None:
        save_arrays(path, run=np.array(self.run), reuse_key=np.array(self.reuse_key), digest=self.digest)

    @classmethod
    def read(cls, path: Path) -> PublishedDigests:
        with np.load(path) as arrays:
            return cls(run=str(arrays["run"]), reuse_key=str(arrays["reuse_key"]), digest=arrays["digest"])
