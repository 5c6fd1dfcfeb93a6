"""Outputs of sequences that an engine left unfinished: a later engine goes on from them instead of starting over."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

UNFINISHED_FILE = "unfinished.npz"


def save_unfinished(folder: Path, outputs: dict[int, NDArray[np.int32]]) -> None:
    """Write the output tokens so far by request, whole or not at all; nothing to write removes the file."""
    path = folder / UNFINISHED_FILE
    if not outputs:
        path.unlink(missing_ok=True)
        return
    lens = [len(token_ids) for token_ids in outputs.values()]
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        np.savez(
            file,
            requests=np.array(list(outputs), dtype=np.int64),
            indptr=np.concatenate([[0], np.cumsum(lens)]).astype(np.int64),
            token_ids=np.concatenate(list(outputs.values())),
        )
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def load_unfinished(folders: list[Path]) -> dict[int, NDArray[np.int32]]:
    """Output tokens by request from every folder that has some; of two versions of a request the longer counts."""
    outputs: dict[int, NDArray[np.int32]] = {}
    for path in (folder / UNFINISHED_FILE for folder in folders):
        if not path.exists():
            continue
        with np.load(path) as arrays:
            requests, indptr, token_ids = arrays["requests"], arrays["indptr"], arrays["token_ids"]
        for request, start, end in zip(requests.tolist(), indptr[:-1], indptr[1:], strict=True):
            if end - start > len(outputs.get(request, ())):
                outputs[request] = token_ids[start:end]
    return outputs
