"""From a batch's prompt column to token ids; rows whose prompt cannot be served get an error instead."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from blendserve_core.data.arrays import null_mask, plain, ragged, rows_of, texts, to_flat, values
from blendserve_core.data.arrow_types import is_list
from blendserve_core.data.columns import PROMPT_KINDS, Columns, PromptKind
from blendserve_core.data.json_text import parse_json
from blendserve_core.data.messages import to_messages
from blendserve_core.data.row_error import RowError
from blendserve_core.text.tokenizer import PromptTokenizer


@dataclass(frozen=True, slots=True)
class Prompts:
    """Token ids of a batch: [num_rows] lengths, 0 for rows in ``errors``, and one flat array of all ids in row order."""

    lens: NDArray[np.int64]
    token_ids: NDArray[np.int32]
    errors: dict[int, RowError]


def read_prompts(batch: pa.RecordBatch, columns: Columns, tokenizer: PromptTokenizer, skipped: Collection[int] = ()) -> Prompts:
    """Tokenize the prompts of a batch; ``skipped`` rows have an error already and are passed over."""
    if columns.prompt_kind == "body":
        return _read_mixed(batch, tokenizer, skipped)
    column = plain(batch.column(columns.prompt))
    if pat.is_null(column.type):
        errors = {row: RowError(*_MISSING[columns.prompt_kind]) for row in range(batch.num_rows) if row not in skipped}
        return Prompts(np.zeros(batch.num_rows, dtype=np.int64), np.zeros(0, dtype=np.int32), errors)
    return _READERS[columns.prompt_kind](column, tokenizer, skipped)


def _read_mixed(requests: pa.RecordBatch, tokenizer: PromptTokenizer, skipped: Collection[int]) -> Prompts:
    """Tokenize rows that have each a prompt of one kind, in the column of that name; the other columns are null there."""
    by_kind = []
    for kind in PROMPT_KINDS:
        column = requests.column(kind)
        others = {*skipped, *np.flatnonzero(null_mask(column)).tolist()}
        by_kind.append(_READERS[kind](column, tokenizer, others))
    lens = np.sum([prompts.lens for prompts in by_kind], axis=0)
    token_ids = np.zeros(int(lens.sum()), dtype=np.int32)
    for prompts in by_kind:
        token_ids[np.repeat(prompts.lens > 0, lens)] = prompts.token_ids
    return Prompts(lens, token_ids, {row: error for prompts in by_kind for row, error in prompts.errors.items()})


def _read_texts(column: pa.Array, tokenizer: PromptTokenizer, skipped: Collection[int]) -> Prompts:
    found, is_broken = texts(column)
    errors: dict[int, RowError] = {}
    wanted: dict[int, str] = {}
    for row, text in enumerate(found):
        if row in skipped:
            continue
        if text is not None and text.strip():
            wanted[row] = text
        elif is_broken[row]:
            errors[row] = RowError("invalid_prompt", "prompt is not UTF-8")
        else:
            errors[row] = RowError(*_MISSING["prompt"])
    return _encode(wanted, len(column), errors, tokenizer, is_rendered=False)


def _read_messages(column: pa.Array, tokenizer: PromptTokenizer, skipped: Collection[int]) -> Prompts:
    problems: dict[int, str] = {}
    checked: dict[int, list[dict[str, Any]]] = {}
    for row, (value, problem) in enumerate(_conversations(column)):
        if row in skipped:
            continue
        try:
            if problem:
                raise ValueError(problem)
            checked[row] = to_messages(value)
        except ValueError as error:
            problems[row] = str(error)
    rendered = dict(zip(checked, tokenizer.render_all(list(checked.values())), strict=True))
    wanted = {row: one.text for row, one in rendered.items() if one.text is not None}
    problems |= {row: one.problem for row, one in rendered.items() if one.text is None}
    errors = {row: RowError("invalid_messages", problem) for row, problem in problems.items()}
    return _encode(wanted, len(column), errors, tokenizer, is_rendered=True)


def _conversations(column: pa.Array) -> list[tuple[Any, str]]:
    """Each row's list of messages, from lists or from JSON text, or what keeps it from being one."""
    found, is_broken = values(column) if is_list(column.type) else texts(column)
    parse = _as_it_is if is_list(column.type) else _parse
    return [(None, "messages are not UTF-8") if bad else parse(value) for value, bad in zip(found, is_broken, strict=True)]


def _as_it_is(value: Any) -> tuple[Any, str]:
    return value, ""


def _parse(text: str | None) -> tuple[Any, str]:
    if text is None:
        return None, ""
    try:
        return parse_json(text), ""
    except ValueError as error:
        return None, f"messages are text, but not JSON: {error}"


def _encode(
    wanted: dict[int, str], num_rows: int, errors: dict[int, RowError], tokenizer: PromptTokenizer, *, is_rendered: bool
) -> Prompts:
    encoded = tokenizer.encode_texts(list(wanted.values()), is_rendered=is_rendered)
    own_lens, token_ids = to_flat(encoded)
    lens = np.zeros(num_rows, dtype=np.int64)
    lens[list(wanted)] = own_lens
    for row in wanted:
        if not lens[row]:
            errors[row] = RowError("invalid_prompt", "the prompt has no tokens")
    return Prompts(lens, token_ids, errors)


def _read_token_ids(column: pa.Array, tokenizer: PromptTokenizer, skipped: Collection[int]) -> Prompts:
    lens, flat, has_null = ragged(column)
    is_outside = (flat < 0) | (flat >= tokenizer.vocab_size)
    words = f"prompt_token_ids must be from 0 to {tokenizer.vocab_size - 1}"
    errors = {int(row): RowError(*_MISSING["prompt_token_ids"]) for row in np.flatnonzero(lens == 0)}
    errors |= {int(row): RowError("invalid_prompt", words) for row in rows_of(lens, is_outside)}
    errors |= {int(row): RowError("invalid_prompt", f"{words}, not null") for row in np.flatnonzero(has_null)}
    errors = {row: error for row, error in errors.items() if row not in skipped}
    is_good = np.ones(len(lens), dtype=np.bool_)
    is_good[[*errors, *skipped]] = False
    token_ids = flat[np.repeat(is_good, lens)].astype(np.int32)
    return Prompts(np.where(is_good, lens, 0), token_ids, errors)


_READERS: dict[PromptKind, Callable[[pa.Array, PromptTokenizer, Collection[int]], Prompts]] = {
    "messages": _read_messages,
    "prompt": _read_texts,
    "prompt_token_ids": _read_token_ids,
}
_MISSING: dict[PromptKind, Any] = {
    "messages": ("invalid_messages", "messages are null or empty"),
    "prompt": ("invalid_prompt", "prompt is null, empty or white space only"),
    "prompt_token_ids": ("invalid_prompt", "prompt_token_ids are null or empty"),
}
