"""What is wrong with one row. A bad row is data: it gets an outcome of its own and the others go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ErrorType = Literal[
    "invalid_prompt", "invalid_messages", "invalid_parameter", "unsupported_url", "context_length_exceeded", "engine_error"
]
Stage = Literal["stage", "generate"]


@dataclass(frozen=True, slots=True)
class RowError:
    """Kind of error, what to do about it in words, and the stage that found it."""

    type: ErrorType
    message: str
    stage: Stage = "stage"
