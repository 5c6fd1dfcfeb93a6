"""The requests of a job as columns: one entry per (input row, sample), token ids in one flat array.

Every later stage speaks of a request by its index in this table. Nothing here holds a Python object per token or request.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blendserve_core.data.durable import save_arrays, written_whole
from blendserve_core.structured.formats import ResponseFormat

TOKENS_FILE = "token_ids.npy"
COLUMNS_FILE = "requests.npz"
STOP_SETS_FILE = "stop_sets.json"
RESPONSE_FORMATS_FILE = "response_formats.json"
_BESIDE_COLUMNS = ("stop_sets", "response_formats")


@dataclass(frozen=True, slots=True)
class SamplingColumns:
    """How each request is sampled; every array has one entry per request.

    ``rng_key`` seeds the counter-based generator together with the token's position, so a request's text does not depend on
    what shares its batch. ``logprobs`` is -1 where none are asked for, else the number of top alternatives.
    ``stop_set`` indexes ``stop_sets`` (distinct tuples of stop strings; entry 0 is always the empty tuple).
    ``response_format`` indexes ``response_formats`` (distinct ones), and is -1 where the text is free.
    """

    max_tokens: NDArray[np.int32]
    temperature: NDArray[np.float32]
    top_p: NDArray[np.float32]
    top_k: NDArray[np.int32]
    min_p: NDArray[np.float32]
    repetition_penalty: NDArray[np.float32]
    presence_penalty: NDArray[np.float32]
    frequency_penalty: NDArray[np.float32]
    rng_key: NDArray[np.uint64]
    ignore_eos: NDArray[np.bool_]
    logprobs: NDArray[np.int32]
    stop_token_indptr: NDArray[np.int64]
    stop_token_ids: NDArray[np.int32]
    stop_set: NDArray[np.int32]
    response_format: NDArray[np.int32]
    stop_sets: tuple[tuple[str, ...], ...] = ((),)
    response_formats: tuple[ResponseFormat, ...] = ()

    @classmethod
    def greedy(cls, num_requests: int, max_tokens: ArrayLike, **columns: ArrayLike) -> SamplingColumns:
        """Greedy, without penalties, stops or log-probabilities, where ``columns`` do not say otherwise.

        Values are numbers, or arrays [num_requests].
        """
        defaults: dict[str, tuple[ArrayLike, type]] = {
            "max_tokens": (max_tokens, np.int32),
            "temperature": (0.0, np.float32),
            "top_p": (1.0, np.float32),
            "top_k": (0, np.int32),
            "min_p": (0.0, np.float32),
            "repetition_penalty": (1.0, np.float32),
            "presence_penalty": (0.0, np.float32),
            "frequency_penalty": (0.0, np.float32),
            "rng_key": (np.arange(num_requests), np.uint64),
            "ignore_eos": (False, np.bool_),
            "logprobs": (-1, np.int32),
            "response_format": (-1, np.int32),
        }
        unknown = columns.keys() - defaults.keys()
        assert not unknown, f"no such columns: {unknown}"
        filled: dict[str, Any] = {
            name: np.full(num_requests, columns.get(name, default), dtype=dtype) for name, (default, dtype) in defaults.items()
        }
        return cls(
            **filled,
            stop_token_indptr=np.zeros(num_requests + 1, dtype=np.int64),
            stop_token_ids=np.empty(0, dtype=np.int32),
            stop_set=np.zeros(num_requests, dtype=np.int32),
        )

    def take(self, requests: NDArray[np.int64]) -> SamplingColumns:
        """The columns of some requests, in the order given; the sets that they index stay as they are."""
        lens = np.diff(self.stop_token_indptr)[requests]
        indptr = np.concatenate([[0], np.cumsum(lens)]).astype(np.int64)
        positions = np.arange(indptr[-1]) + np.repeat(self.stop_token_indptr[requests] - indptr[:-1], lens)
        ragged = {"stop_token_indptr": indptr, "stop_token_ids": self.stop_token_ids[positions]}
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ragged}
        own = {name: column[requests] for name, column in columns.items() if isinstance(column, np.ndarray)}
        return replace(self, **own, **ragged)


@dataclass(frozen=True, slots=True)
class RequestTable:
    """Requests sorted by (row, sample_index). Samples of one row, and equal prompts, may share one span of ``token_ids``.

    Shapes: every array is [num_requests] but ``token_ids``, which is [num_stored_tokens] and memory-mapped when loaded.
    """

    row: NDArray[np.int64]
    sample_index: NDArray[np.int32]
    prompt_start: NDArray[np.int64]
    num_prompt_tokens: NDArray[np.int32]
    token_ids: NDArray[np.int32]
    sampling: SamplingColumns

    @property
    def num_requests(self) -> int:
        return len(self.row)

    def prompt(self, request: int) -> NDArray[np.int32]:
        """Token ids of one request's prompt, a view into the flat array."""
        start = self.prompt_start[request]
        return self.token_ids[start : start + self.num_prompt_tokens[request]]

    def take(self, requests: NDArray[np.int64]) -> RequestTable:
        """The table of some requests, in rising order of their indices; all token ids stay where they are."""
        columns = {f.name: getattr(self, f.name)[requests] for f in fields(self) if f.name not in ("token_ids", "sampling")}
        return RequestTable(**columns, token_ids=self.token_ids, sampling=self.sampling.take(requests))

    def save(self, folder: Path) -> None:
        """Write the table below ``folder``; the token ids become a plain ``.npy`` that can be memory-mapped."""
        folder.mkdir(parents=True, exist_ok=True)
        if not _is_memory_map_of(self.token_ids, folder / TOKENS_FILE):
            with written_whole(folder / TOKENS_FILE) as path, path.open("wb") as file:
                np.save(file, self.token_ids)
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("token_ids", "sampling")}
        sampling = {f.name: getattr(self.sampling, f.name) for f in fields(self.sampling) if f.name not in _BESIDE_COLUMNS}
        save_arrays(folder / COLUMNS_FILE, **own, **sampling)
        for name, values in (
            (STOP_SETS_FILE, self.sampling.stop_sets),
            (RESPONSE_FORMATS_FILE, self.sampling.response_formats),
        ):
            with written_whole(folder / name) as path:
                path.write_text(json.dumps(values), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> RequestTable:
        """Read a table written by :meth:`save`; columns are read whole, token ids are memory-mapped."""
        with np.load(folder / COLUMNS_FILE) as columns:
            own = {f.name: columns[f.name] for f in fields(cls) if f.name not in ("token_ids", "sampling")}
            sampling = {f.name: columns[f.name] for f in fields(SamplingColumns) if f.name not in _BESIDE_COLUMNS}
        stop_sets = tuple(tuple(stops) for stops in json.loads((folder / STOP_SETS_FILE).read_text(encoding="utf-8")))
        token_ids = np.load(folder / TOKENS_FILE, mmap_mode="r")
        sampling = SamplingColumns(**sampling, stop_sets=stop_sets, response_formats=load_response_formats(folder))
        return cls(**own, token_ids=token_ids, sampling=sampling)


def load_response_formats(folder: Path) -> tuple[ResponseFormat, ...]:
    """The formats of a saved table, without the table."""
    return tuple(ResponseFormat(*found) for found in json.loads((folder / RESPONSE_FORMATS_FILE).read_text(encoding="utf-8")))


def _is_memory_map_of(array: NDArray[np.int32], path: Path) -> bool:
    return isinstance(array, np.memmap) and array.filename is not None and Path(array.filename) == path.absolute()
