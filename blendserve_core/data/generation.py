"""One finished sequence, and how many become a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Literal

import pyarrow as pa

from blendserve_core.data.row_error import RowError
from schemas.arrow import GENERATION_SCHEMA

FinishReason = Literal["stop", "length", "error"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of an output token, and the likeliest alternatives to it."""

    token_id: int
    logprob: float
    top_token_ids: Sequence[int]
    top_logprobs: Sequence[float]


@dataclass(frozen=True, slots=True)
class Generation:
    """The outcome of one request, in the fields of GENERATION_SCHEMA: a text, or an error (type, message, stage)."""

    row: int
    sample_index: int
    output_text: str | None
    output_token_ids: Sequence[int] | None
    finish_reason: FinishReason
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_output_tokens: int | None = None
    logprobs: Sequence[TokenLogprob] | None = None
    error: Mapping[str, str] | None = None


def failed(row: int, error: RowError) -> Generation:
    """The outcome of a row that cannot be served at all; it counts once, however many samples it asked for."""
    return Generation(row, 0, None, None, "error", error=asdict(error))


def to_table(generations: Sequence[Generation]) -> pa.Table:
    """A table in GENERATION_SCHEMA, in the order given."""
    columns = {name: [getattr(generation, name) for generation in generations] for name in GENERATION_SCHEMA.names}
    columns["logprobs"] = [_as_structs(generation.logprobs) for generation in generations]
    return pa.Table.from_pydict(columns, schema=GENERATION_SCHEMA)


def _as_structs(tokens: Sequence[TokenLogprob] | None) -> list[dict[str, object]] | None:
    if tokens is None:
        return None
    names = [field.name for field in fields(TokenLogprob)]
    return [{name: getattr(token, name) for name in names} for token in tokens]
