"""Arrow schemas of what is on disk: part files the engines write, and the columns added to the published output."""

from __future__ import annotations

import pyarrow as pa

ERROR_TYPE = pa.struct([("type", pa.string()), ("message", pa.string()), ("stage", pa.string())])


def _list_of(value_type: pa.DataType) -> pa.ListType:
    """A list whose items are called as the Parquet format has it, also in Arrow."""
    return pa.list_(pa.field("element", value_type))


# One entry per output token: its own log-probability and the most likely alternatives.
LOGPROBS_TYPE = _list_of(
    pa.struct(
        [
            ("token_id", pa.int32()),
            ("logprob", pa.float32()),
            ("top_token_ids", _list_of(pa.int32())),
            ("top_logprobs", _list_of(pa.float32())),
        ]
    )
)

# A generation, as an engine writes it: keyed by (row, sample_index), in the order in which sequences finish.
# Bad rows found while staging have the same shape, with finish_reason "error".
GENERATION_SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("sample_index", pa.int32(), nullable=False),
        pa.field("output_text", pa.string()),
        pa.field("output_token_ids", _list_of(pa.int32())),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("num_prompt_tokens", pa.int32()),
        pa.field("num_cached_tokens", pa.int32()),
        pa.field("num_output_tokens", pa.int32()),
        pa.field("logprobs", LOGPROBS_TYPE),
        pa.field("error", ERROR_TYPE),
    ]
)

# What publishing adds after the input's own columns; request_id only where the input has none, logprobs only where asked for.
ADDED_COLUMNS = ("request_id", *[name for name in GENERATION_SCHEMA.names if name != "row"])
