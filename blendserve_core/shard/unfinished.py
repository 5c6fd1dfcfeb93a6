"""Outputs of sequences that an engine left unfinished: a later engine goes on from them instead of starting over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from blendserve_core.data.durable import save_arrays

UNFINISHED_FILE = "unfinished.npz"
KEEP_EVERY_S = 10.0


def save_unfinished(folder: Path, outputs: dict[int, NDArray[np.int32]]) -> None:
    """Write the output tokens so far by request, whole or not at all; nothing to write removes the file."""
    path = folder / UNFINISHED_FILE
    if not outputs:
        path.unlink(missing_ok=True)
        return
    lens = [len(token_ids) for token_ids in outputs.values()]
    save_arrays(
        path,
        requests=np.array(list(outputs), dtype=np.int64),
        indptr=np.concatenate([[0], np.cumsum(lens)]).astype(np.int64),
        token_ids=np.concatenate(list(outputs.values())),
    )


class UnfinishedKeeper:
    """Saves outputs so far every few seconds, so that an engine that is killed loses no more than that of a long text."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next_s = monotonic() + KEEP_EVERY_S

    def keep_if_due(self, outputs_so_far: Callable[[], dict[int, NDArray[np.int32]]]) -> None:
        if monotonic() >= self._next_s:
            save_unfinished(self._folder, outputs_so_far())
            self._next_s = monotonic() + KEEP_EVERY_S


def load_unfinished(folders: list[Path]) -> dict[int, NDArray[np.int32]]:
    """Output tokens by request from every folder that has some; of two versions of a request the longer counts."""
    outputs: dict[int, NDArray[np.int32]] = {}
    for folder in folders:
        requests, indptr, token_ids = _read(folder / UNFINISHED_FILE)
        for request, start, end in zip(requests.tolist(), indptr[:-1], indptr[1:], strict=True):
            if end - start > len(outputs.get(request, ())):
                outputs[request] = token_ids[start:end]
    return outputs


def _read(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """Requests, indptr and token ids of one file; none where there is no file, or not all of it."""
    try:
        with np.load(path) as arrays:
            return arrays["requests"], arrays["indptr"], arrays["token_ids"]
    except (FileNotFoundError, EOFError, ValueError, KeyError, BadZipFile):
        return np.empty(0, dtype=np.int64), np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.int32)
