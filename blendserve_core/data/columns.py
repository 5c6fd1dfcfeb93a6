"""Which input column holds what: the prompt, the request's id, and sampling parameters of single rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.types as pat

from blendserve_core.data.arrow_types import ListLike, fields_of, is_number, is_string, is_text, plain_type
from blendserve_core.data.openai.bodies import REQUEST_SCHEMA
from blendserve_core.data.openai.lines import BODY, CUSTOM_ID, URL
from schemas.parameters import SamplingDefaults

PromptKind = Literal["messages", "prompt", "prompt_token_ids", "body"]
PROMPT_KINDS: tuple[PromptKind, ...] = ("messages", "prompt", "prompt_token_ids")
EXPECTED_OUTPUT_TOKENS = "expected_output_tokens"
# Rows may say how long their outputs will be; a job has no default for that.
SAMPLING_NAMES = (*SamplingDefaults.model_fields, EXPECTED_OUTPUT_TOKENS)


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the input's columns: of the prompt, of the id (None where there is none), and by sampling parameter.

    A prompt of kind ``body`` is a whole request of the batch format as JSON text, sampling parameters included.
    """

    prompt_kind: PromptKind
    prompt: str
    request_id: str | None
    sampling: dict[str, str]


def resolve_columns(schema: pa.Schema, mapping: Mapping[str, str]) -> Columns:
    """Find the columns of a job in its input.

    ``mapping`` gives their names where they differ from ours; an empty name leaves a column of ours unused. Raises ValueError
    where there is no prompt or more than one, where a mapped column is missing, or where a type cannot be what it should.
    """
    _check_mapping(schema, mapping)
    if _holds_bodies(schema, mapping):
        request_id = mapping.get("request_id", CUSTOM_ID)
        sampling = {name: name for name in SAMPLING_NAMES if name in REQUEST_SCHEMA.names}
        return Columns("body", BODY, request_id if request_id in schema.names else None, sampling)
    found = {
        ours: theirs
        for ours in (*PROMPT_KINDS, "request_id", *SAMPLING_NAMES)
        if (theirs := mapping.get(ours, ours)) in schema.names
    }
    prompt_kind = _prompt_kind(schema, found, mapping)
    sampling = {ours: found[ours] for ours in SAMPLING_NAMES if ours in found}
    for ours, theirs in found.items():
        if ours == prompt_kind or ours not in PROMPT_KINDS:
            _check_type(ours, theirs, schema.field(theirs).type)
    return Columns(prompt_kind, found[prompt_kind], found.get("request_id"), sampling)


def _holds_bodies(schema: pa.Schema, mapping: Mapping[str, str]) -> bool:
    """Whether the rows are requests of the batch format, and nothing else in them is a prompt."""
    if BODY not in schema.names or not {CUSTOM_ID, URL} & set(schema.names):
        return False
    has_prompt = any(mapping.get(kind, kind) in schema.names for kind in PROMPT_KINDS)
    return not has_prompt and is_string(plain_type(schema.field(BODY).type))


def _check_mapping(schema: pa.Schema, mapping: Mapping[str, str]) -> None:
    known = (*PROMPT_KINDS, "request_id", *SAMPLING_NAMES)
    for ours, theirs in mapping.items():
        if ours not in known:
            raise ValueError(f"columns: {ours!r} is no column of ours. Known: {', '.join(known)}.")
        if theirs and theirs not in schema.names:
            raise ValueError(f"columns: no column {theirs!r} for {ours!r}. The input has: {', '.join(schema.names)}.")


def _prompt_kind(schema: pa.Schema, found: Mapping[str, str], mapping: Mapping[str, str]) -> PromptKind:
    present: list[PromptKind] = [kind for kind in PROMPT_KINDS if kind in found]
    mapped: list[PromptKind] = [kind for kind in present if kind in mapping]
    chosen = mapped or present
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        raise ValueError(
            f"more than one prompt column: {', '.join(chosen)}. Choose one by mapping it, "
            f"such as --column {chosen[0]}={found[chosen[0]]}."
        )
    raise ValueError(
        f"no prompt column: one of {', '.join(PROMPT_KINDS)} is needed, but the input has "
        f"{', '.join(schema.names) or 'no columns'}. Map yours, such as --column prompt=question."
    )


def _check_type(ours: str, theirs: str, data_type: pa.DataType) -> None:
    plain = plain_type(data_type)
    is_right, wanted = _WANTED.get(ours, (_is_number, "numbers"))
    if not pat.is_null(plain) and not is_right(plain):
        way_out = f"; --column {ours}= leaves it unused" if ours not in PROMPT_KINDS else ""
        raise ValueError(f"column {theirs!r} is {data_type}, but {ours} needs {wanted}{way_out}.")


def _is_number(data_type: pa.DataType) -> bool:
    return is_number(data_type) or pat.is_decimal(data_type)


def _is_list_of(is_value: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    def is_right(data_type: pa.DataType) -> bool:
        return isinstance(data_type, ListLike) and (pat.is_null(data_type.value_type) or is_value(data_type.value_type))

    return is_right


def _is_message(data_type: pa.DataType) -> bool:
    if isinstance(data_type, pa.StructType):
        return {"role", "content"} <= {field.name for field in fields_of(data_type)}
    return pat.is_map(data_type)


def _is_messages(data_type: pa.DataType) -> bool:
    return is_string(data_type) or _is_list_of(_is_message)(data_type)


def _is_stop(data_type: pa.DataType) -> bool:
    return is_text(data_type) or _is_list_of(is_text)(data_type)


def _is_format(data_type: pa.DataType) -> bool:
    return is_string(data_type) or pat.is_struct(data_type)


def _is_scalar(data_type: pa.DataType) -> bool:
    return not pat.is_nested(data_type)


_WANTED: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "request_id": (_is_scalar, "single values"),
    "messages": (_is_messages, "a list of structs with role and content, or the same as JSON text"),
    "prompt": (is_string, "text"),
    "prompt_token_ids": (_is_list_of(pat.is_integer), "lists of integers"),
    "stop": (_is_stop, "lists of strings, or text"),
    "stop_token_ids": (_is_list_of(pat.is_integer), "lists of integers"),
    "ignore_eos": (pat.is_boolean, "booleans"),
    "response_format": (_is_format, "structs, or the same as JSON text"),
}
