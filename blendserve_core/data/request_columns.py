"""Collects the columns of the request table, batch by batch; rows with n samples become n requests on one prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blendserve_core.data.rng_keys import rng_keys
from blendserve_core.data.sampling_columns import RowSampling
from blendserve_core.data.work_items import AllRequests
from blendserve_core.requests import TOKENS_FILE, RequestTable, SamplingColumns
from blendserve_core.structured.formats import ResponseFormat

_DTYPES: dict[str, type[np.generic]] = {
    "row": np.int64, "sample_index": np.int32, "prompt_start": np.int64, "num_prompt_tokens": np.int32,
    "max_tokens": np.int32, "temperature": np.float32, "top_p": np.float32, "top_k": np.int32, "min_p": np.float32,
    "repetition_penalty": np.float32, "presence_penalty": np.float32, "frequency_penalty": np.float32,
    "rng_key": np.uint64, "ignore_eos": np.bool_, "logprobs": np.int32, "stop_set": np.int32, "response_format": np.int32,
    "num_stop_tokens": np.int64, "stop_token_ids": np.int32, "draw_key": np.uint64, "is_repeatable": np.bool_,
}  # fmt: skip
_OF_TABLE = ("row", "sample_index", "prompt_start", "num_prompt_tokens")
_NUMBERS = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logprobs",
)  # fmt: skip


class RequestColumns:
    """Chunks of every column, joined by :meth:`finish`. Nothing here is an object per request."""

    def __init__(self, run_seed: int) -> None:
        self._run_seed = run_seed
        self._chunks: dict[str, list[NDArray[Any]]] = {name: [] for name in _DTYPES}
        self._stop_sets: dict[tuple[str, ...], int] = {(): 0}
        self._response_formats: dict[ResponseFormat, int] = {}
        self.num_requests = 0
        self.num_prompt_tokens = 0

    def add(
        self,
        first_row: int,
        served: NDArray[np.int64],
        prompt_starts: NDArray[np.int64],
        lens: NDArray[np.int64],
        max_tokens: NDArray[np.int64],
        sampling: RowSampling,
    ) -> None:
        """Add the ``served`` rows of a batch (positions in it); the other arrays are [num_batch_rows]."""
        num_samples = sampling.numbers["n"][served]
        of = np.repeat(served, num_samples)
        first_of_row = np.repeat(np.cumsum(num_samples) - num_samples, num_samples)
        sample_index = (np.arange(len(of)) - first_of_row).astype(np.int32)
        rows = first_row + of
        stop_token_ids = [sampling.stop_token_ids[i] for i in of]
        seed, has_seed = sampling.seed[of], sampling.has_seed[of]
        is_greedy = sampling.numbers["temperature"][of] == 0
        anywhere = rng_keys(seed, has_seed, np.zeros_like(rows), sample_index, self._run_seed)
        columns = {
            "row": rows,
            "sample_index": sample_index,
            "prompt_start": prompt_starts[of],
            "num_prompt_tokens": lens[of],
            "max_tokens": max_tokens[of],
            "rng_key": rng_keys(seed, has_seed, rows, sample_index, self._run_seed),
            "draw_key": np.where(is_greedy, 0, anywhere),
            "is_repeatable": is_greedy | has_seed,
            "ignore_eos": sampling.ignore_eos[of],
            "stop_set": [self._stop_set(sampling.stops[i]) for i in of],
            "response_format": [self._response_format(sampling.response_formats[i]) for i in of],
            "num_stop_tokens": [len(ids) for ids in stop_token_ids],
            "stop_token_ids": [token_id for ids in stop_token_ids for token_id in ids],
        } | {name: sampling.numbers[name][of] for name in _NUMBERS}
        for name, values in columns.items():
            self._chunks[name].append(np.asarray(values).astype(_DTYPES[name]))
        self.num_requests += len(of)
        self.num_prompt_tokens += int(lens[of].sum())

    def finish(self, folder: Path) -> AllRequests:
        """All requests, over the token ids that are already in ``folder``."""
        joined = {name: self._join(name) for name in _DTYPES}
        indptr = np.concatenate([[0], np.cumsum(joined.pop("num_stop_tokens"))]).astype(np.int64)
        draw_key, is_repeatable = joined.pop("draw_key"), joined.pop("is_repeatable")
        own = {name: joined.pop(name) for name in _OF_TABLE}
        sampling = SamplingColumns(
            **joined,
            stop_token_indptr=indptr,
            stop_sets=tuple(self._stop_sets),
            response_formats=tuple(self._response_formats),
        )
        token_ids = np.load(folder / TOKENS_FILE, mmap_mode="r")
        return AllRequests(RequestTable(**own, token_ids=token_ids, sampling=sampling), draw_key, is_repeatable)

    def _join(self, name: str) -> NDArray[Any]:
        """Concatenate a column's chunks, and let go of them."""
        return np.concatenate([np.zeros(0, dtype=_DTYPES[name]), *self._chunks.pop(name)])

    def _response_format(self, response_format: ResponseFormat | None) -> int:
        if response_format is None:
            return -1
        return self._response_formats.setdefault(response_format, len(self._response_formats))

    def _stop_set(self, stops: tuple[str, ...]) -> int:
        return self._stop_sets.setdefault(stops, len(self._stop_sets))
