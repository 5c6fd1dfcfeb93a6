"""Requests to simulate, from a Parquet file: their lengths or prompts, and how many tokens each puts out."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from blendserve_core.sim.lengths import SOURCES, Lengths, LengthSource, resample

LONGEST = 2**31 - 1


def length_source(name_or_path: str) -> LengthSource:
    """A synthetic trace by name, or a Parquet file's rows."""
    if name_or_path in SOURCES:
        return SOURCES[name_or_path]
    if not Path(name_or_path).is_file():
        raise ValueError(f"{name_or_path!r} is neither a synthetic trace ({', '.join(SOURCES)}) nor a Parquet file")
    return partial(resample, read_lengths(Path(name_or_path)))


def has_prompts(path: Path) -> bool:
    """Whether the file has ``prompt_token_ids``, and not only lengths."""
    return "prompt_token_ids" in _names(path)


def read_lengths(path: Path) -> Lengths:
    """Lengths from ``input_tokens`` and ``output_tokens``, and maybe a prefix.

    The prefix is ``prefix_group`` (any type, null for none) and ``shared_prefix_tokens``, of which a row without a group needs
    none. Raises ValueError for what is no Parquet file, for a missing column, and for the first row that cannot be used.
    """
    names = _names(path)
    prompts, outputs = (_counts(path, name) for name in ("input_tokens", "output_tokens"))
    if "prefix_group" not in names and "shared_prefix_tokens" not in names:
        nothing = np.zeros(len(prompts), np.int32)
        return Lengths(prompts, outputs, nothing - 1, nothing)
    keys = _column(path, "prefix_group")
    codes = keys if hasattr(keys, "indices") else keys.dictionary_encode()
    group = codes.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    prefix = _counts(path, "shared_prefix_tokens", least=0, needed=group >= 0)
    _refuse(path, "shared_prefix_tokens", (group >= 0) & (prefix > prompts), prefix, "which is more than its input_tokens")
    return Lengths(prompts, outputs, group, np.where(group < 0, 0, prefix).astype(np.int32))


def read_prompts(path: Path) -> tuple[list[NDArray[np.int32]], NDArray[np.int32]]:
    """(prompts, output tokens) from ``prompt_token_ids``, lists of token ids, and ``output_tokens``. Errors as above."""
    lists = _column(path, "prompt_token_ids")
    if not pa.types.is_list(lists.type) and not pa.types.is_large_list(lists.type):
        raise ValueError(f"{path}, column 'prompt_token_ids' has type {lists.type}; a list of token ids is needed in each row")
    lens = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    _refuse(path, "prompt_token_ids", lens < 1, lens, "tokens; give each prompt at least one")
    token_ids = _whole_numbers(path, "prompt_token_ids", lists.flatten())
    row = np.repeat(np.arange(len(lens)), lens)
    _refuse(path, "prompt_token_ids", (token_ids < 0) | (token_ids > LONGEST), token_ids, "which is no token id", row)
    outputs = _counts(path, "output_tokens")
    return np.split(token_ids.astype(np.int32), np.cumsum(lens)[:-1]), outputs


def _names(path: Path) -> list[str]:
    try:
        return pq.read_schema(path).names
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} is no Parquet file: {error}") from error


def _column(path: Path, name: str) -> Any:
    names = _names(path)
    if name not in names:
        raise ValueError(f"{path} has no column {name!r}; it has {', '.join(names)}")
    column = pq.read_table(path, columns=[name])[name].combine_chunks()
    if len(column) == 0:
        raise ValueError(f"{path} has no rows")
    return column


def _counts(path: Path, name: str, least: int = 1, needed: NDArray[np.bool_] | None = None) -> NDArray[np.int32]:
    """A column of whole numbers from ``least`` on, [R]; rows that are not ``needed`` may be null, and are 0 then."""
    column = _column(path, name)
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    if needed is not None:
        column = column.fill_null(0) if column.null_count and not pa.types.is_null(column.type) else column
        is_null = is_null & needed
    _refuse(path, name, is_null, is_null, "", text="null")
    values = _whole_numbers(path, name, column)
    _refuse(path, name, (values < least) | (values > LONGEST), values, f"which is not between {least} and {LONGEST}")
    return values.astype(np.int32)


def _whole_numbers(path: Path, name: str, column: Any) -> NDArray[np.int64]:
    if not pa.types.is_integer(column.type):
        raise ValueError(f"{path}, column {name!r} has type {column.type}; whole numbers are needed")
    if column.null_count:
        raise ValueError(f"{path}, column {name!r} has a null in a list; remove it")
    return column.to_numpy(zero_copy_only=False).astype(np.int64)


def _refuse(
    path: Path,
    name: str,
    is_bad: NDArray[np.bool_],
    values: NDArray[Any],
    reason: str,
    row: NDArray[np.int64] | None = None,
    *,
    text: str = "",
) -> None:
    """Raise for the first bad value; ``row`` says which row each value is of, where that is not its own number."""
    if is_bad.any():
        first = int(np.argmax(is_bad))
        number = first if row is None else int(row[first])
        raise ValueError(f"{path}, column {name!r}, row {number} (from 0): {text or values[first]} {reason}".rstrip())
