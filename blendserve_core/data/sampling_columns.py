"""Sampling parameters of single rows: a column's value, or the job's default where there is none; bad values are row errors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from blendserve_core.data.arrays import null_mask, plain, values
from blendserve_core.data.columns import EXPECTED_OUTPUT_TOKENS
from blendserve_core.data.format_columns import read_formats
from blendserve_core.data.row_error import RowError
from blendserve_core.structured.formats import ResponseFormat
from blendserve_core.text.printable import quoted
from schemas.parameters import SamplingDefaults

MAX_SAMPLES_PER_ROW = 1024
_INT32_MAX = 2**31 - 1


class _Range(NamedTuple):
    """Allowed values of a number, in words too; ``low_open`` leaves out the lower end."""

    dtype: type
    low: float
    high: float
    words: str
    low_open: bool = False


_RANGES = {
    "max_tokens": _Range(np.int64, 1, math.inf, "at least 1"),
    "temperature": _Range(np.float64, 0, 3e38, "at least 0"),
    "top_p": _Range(np.float64, 0, 1, "above 0 and at most 1", low_open=True),
    "top_k": _Range(np.int64, -1, math.inf, "at least -1"),
    "min_p": _Range(np.float64, 0, 1, "from 0 to 1"),
    "repetition_penalty": _Range(np.float64, 0, 3e38, "above 0", low_open=True),
    "presence_penalty": _Range(np.float64, -2, 2, "from -2 to 2"),
    "frequency_penalty": _Range(np.float64, -2, 2, "from -2 to 2"),
    "n": _Range(np.int64, 1, MAX_SAMPLES_PER_ROW, f"from 1 to {MAX_SAMPLES_PER_ROW}"),
    "logprobs": _Range(np.int64, 0, 20, "from 0 to 20"),
    EXPECTED_OUTPUT_TOKENS: _Range(np.float64, 1, 3e38, "at least 1"),
}


@dataclass(frozen=True, slots=True)
class RowSampling:
    """Sampling of a batch's rows; every array and list is [num_rows].

    ``numbers`` holds the parameters of that name (``logprobs`` is -1 for none, ``expected_output_tokens`` 0).
    ``seed`` has its 64 bits exactly, and counts where ``has_seed``. Values of rows in ``errors`` mean nothing.
    """

    numbers: dict[str, NDArray[Any]]
    seed: NDArray[np.uint64]
    has_seed: NDArray[np.bool_]
    ignore_eos: NDArray[np.bool_]
    stops: list[tuple[str, ...]]
    stop_token_ids: list[tuple[int, ...]]
    response_formats: list[ResponseFormat | None]
    errors: dict[int, RowError] = field(default_factory=dict)


def read_sampling(batch: pa.RecordBatch, columns: dict[str, str], defaults: SamplingDefaults, vocab_size: int) -> RowSampling:
    """Read the sampling columns of a batch; ``columns`` gives their names by parameter."""
    errors: dict[int, RowError] = {}
    own = {ours: plain(batch.column(theirs)) for ours, theirs in columns.items()}
    numbers = {name: _numbers(name, own.get(name), batch.num_rows, defaults, errors) for name in _RANGES}
    seed, has_seed = _seeds(own.get("seed"), batch.num_rows, errors)
    _make_greedy_rows_plain(numbers)
    return RowSampling(
        numbers=numbers,
        seed=seed,
        has_seed=has_seed,
        ignore_eos=_flags(own.get("ignore_eos"), batch.num_rows, defaults.ignore_eos),
        stops=_stops(own.get("stop"), batch.num_rows, tuple(defaults.stop), errors),
        stop_token_ids=_stop_token_ids(
            own.get("stop_token_ids"), batch.num_rows, tuple(defaults.stop_token_ids), vocab_size, errors
        ),
        response_formats=read_formats(own.get("response_format"), batch.num_rows, defaults.response_format, errors),
        errors=errors,
    )


def _numbers(
    name: str, column: pa.Array | None, num_rows: int, defaults: SamplingDefaults, errors: dict[int, RowError]
) -> NDArray[Any]:
    rule = _RANGES[name]
    default = 0 if name == EXPECTED_OUTPUT_TOKENS else getattr(defaults, name)
    default = -1 if default is None else default
    if column is None or pat.is_null(column.type):
        return np.full(num_rows, default, dtype=rule.dtype)
    is_null = null_mask(column)
    given = _to_numpy(column, default)
    is_low = (given <= rule.low) if rule.low_open else (given < rule.low)
    is_bad = is_low | ~(given <= rule.high)
    if rule.dtype is np.int64:
        is_bad |= given != np.floor(given)
    _report(errors, np.flatnonzero(is_bad & ~is_null), name, column, rule.words)
    return np.where(is_bad | is_null, default, given).clip(-_INT32_MAX, _INT32_MAX).astype(rule.dtype)


def _to_numpy(column: pa.Array, null_value: float) -> NDArray[Any]:
    """Integers stay integers; whatever else it is, becomes float64."""
    if pat.is_integer(column.type):
        return column.fill_null(pa.scalar(0, column.type)).to_numpy(zero_copy_only=False)
    return column.cast(pa.float64(), safe=False).fill_null(float(null_value)).to_numpy(zero_copy_only=False)


def _seeds(column: pa.Array | None, num_rows: int, errors: dict[int, RowError]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    if column is None or pat.is_null(column.type):
        return np.zeros(num_rows, dtype=np.uint64), np.zeros(num_rows, dtype=np.bool_)
    is_null = null_mask(column)
    given = _to_numpy(column, 0)
    if given.dtype.kind == "f":
        is_bad = ~((np.abs(given) <= 2.0**53) & (given == np.floor(given)))
        _report(errors, np.flatnonzero(is_bad & ~is_null), "seed", column, "a whole number of 64 bits")
        given = np.where(is_bad, 0, given).astype(np.int64)
    wide = given.astype(np.uint64) if given.dtype.kind == "u" else given.astype(np.int64).view(np.uint64)
    return wide, ~is_null


def _flags(column: pa.Array | None, num_rows: int, default: bool) -> NDArray[np.bool_]:
    if column is None or pat.is_null(column.type):
        return np.full(num_rows, default, dtype=np.bool_)
    return column.fill_null(default).to_numpy(zero_copy_only=False)


def _stops(
    column: pa.Array | None, num_rows: int, default: tuple[str, ...], errors: dict[int, RowError]
) -> list[tuple[str, ...]]:
    if column is None or pat.is_null(column.type):
        return [default] * num_rows
    found: list[tuple[str, ...]] = []
    for row, value in enumerate(values(column)[0]):
        stops = default if value is None else (value,) if isinstance(value, str) else tuple(value)
        if all(isinstance(stop, str) and stop for stop in stops):
            found.append(stops)
            continue
        found.append(())
        _add(errors, row, f"stop is {quoted(value)}; it must be strings that are not empty")
    return found


def _stop_token_ids(
    column: pa.Array | None, num_rows: int, default: tuple[int, ...], vocab_size: int, errors: dict[int, RowError]
) -> list[tuple[int, ...]]:
    if column is None or pat.is_null(column.type):
        return [default] * num_rows
    found: list[tuple[int, ...]] = []
    for row, value in enumerate(column.to_pylist()):
        token_ids = default if value is None else tuple(value)
        if all(token_id is not None and 0 <= token_id < vocab_size for token_id in token_ids):
            found.append(token_ids)
            continue
        found.append(())
        _add(errors, row, f"stop_token_ids is {quoted(value)}; each must be from 0 to {vocab_size - 1}")
    return found


def _make_greedy_rows_plain(numbers: dict[str, NDArray[Any]]) -> None:
    """At temperature 0 the likeliest token is taken, and what narrows the choice does not matter."""
    is_greedy = numbers["temperature"] == 0
    numbers["top_p"][is_greedy] = 1.0
    numbers["min_p"][is_greedy] = 0.0
    numbers["top_k"][is_greedy | (numbers["top_k"] < 0)] = 0


def _report(errors: dict[int, RowError], rows: Iterable[int], name: str, column: pa.Array, words: str) -> None:
    for row in rows:
        _add(errors, int(row), f"{name} is {column[int(row)].as_py()}; it must be {words}")


def _add(errors: dict[int, RowError], row: int, message: str) -> None:
    """The first thing wrong with a row is its error."""
    errors.setdefault(row, RowError("invalid_parameter", message))
