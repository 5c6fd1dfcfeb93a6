"""What a request asks of the model in 16 bytes: equal digests are equal work, within this job and across jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blendserve_core.requests import RequestTable, SamplingColumns

_RAGGED = ("stop_token_indptr", "stop_token_ids")


def work_digests(requests: RequestTable, draw_key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """[R, 2] digests over prompt and parameters, with ``draw_key`` [R] in place of the table's ``rng_key``.

    All that a request is sampled by goes in as it is, and so do numbers that stand for something else in this table alone
    (a set of stop strings), by what they stand for. 128 bits are never equal by chance, so nothing is compared again.
    """
    fixed = _fixed_part(requests, draw_key)
    stops, indptr = _bytes(requests.sampling.stop_token_ids), requests.sampling.stop_token_indptr * 4
    tokens, starts = _bytes(requests.token_ids), requests.prompt_start * 4
    ends = starts + requests.num_prompt_tokens.astype(np.int64) * 4
    digests = bytearray()
    spans = zip(fixed, starts.tolist(), ends.tolist(), indptr[:-1].tolist(), indptr[1:].tolist(), strict=True)
    for own, start, end, stop_start, stop_end in spans:
        digest = blake2b(own, digest_size=16)
        digest.update(stops[stop_start:stop_end])
        digest.update(tokens[start:end])
        digests += digest.digest()
    return np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)


def first_of_equals(digests: NDArray[np.uint64], is_repeatable: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[R] the first request that asks for the same as each: itself where none does, or where outcomes are a matter of luck."""
    first = np.arange(len(digests))
    candidates = np.flatnonzero(is_repeatable)
    order = candidates[np.lexsort(digests[candidates].T)]  # stable: equals stay in table order
    is_new = np.ones(len(order), dtype=np.bool_)
    is_new[1:] = (digests[order[1:]] != digests[order[:-1]]).any(axis=1)
    first[order] = order[is_new][np.cumsum(is_new) - 1]
    return first


def _fixed_part(requests: RequestTable, draw_key: NDArray[np.uint64]) -> Iterator[bytes]:
    """What has the same size for every request, packed."""
    columns: dict[str, NDArray[Any]] = {
        "num_prompt_tokens": requests.num_prompt_tokens,
        "num_stop_tokens": np.diff(requests.sampling.stop_token_indptr),
        "draw_key": draw_key,
    } | _sampling_columns(requests.sampling)
    packed = np.empty(requests.num_requests, dtype=[(name, column.dtype) for name, column in columns.items()])
    for name, column in columns.items():
        packed[name] = column
    return (each.tobytes() for each in packed)


def _sampling_columns(sampling: SamplingColumns) -> dict[str, NDArray[Any]]:
    """Every column of one entry per request; where it indexes a tuple (``stop_set``: ``stop_sets``), digests of its entries."""
    values = {field.name: getattr(sampling, field.name) for field in fields(sampling)}
    sets = {name: values.pop(name) for name in list(values) if isinstance(values[name], tuple)}
    columns = {name: column for name, column in values.items() if name not in (*_RAGGED, "rng_key")}
    for name, entries in sets.items():
        index = name.removesuffix("s")
        assert index in columns, f"no column indexes {name}"
        columns[index] = _digests_of(entries)[columns[index]]
    return columns


def _digests_of(entries: tuple[Any, ...]) -> NDArray[np.void]:
    """[entries + 1], the last one zero for index -1, where a request has none of them."""
    digests = [blake2b(repr(entry).encode(), digest_size=16).digest() for entry in entries]
    return np.array([*digests, bytes(16)], dtype="V16")


def _bytes(array: NDArray[Any]) -> memoryview:
    return memoryview(np.ascontiguousarray(array).view(np.uint8).data)
