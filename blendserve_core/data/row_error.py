"""What is wrong with one row. A bad row is data: it gets an outcome of its own and the others go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from blendserve_core.text.printable import printable

ErrorType = Literal[
    "invalid_prompt",
    "invalid_messages",
    "invalid_parameter",
    "invalid_response_format",
    "unsupported_response_format",
    "unsupported_url",
    "context_length_exceeded",
    "engine_error",
]
Stage = Literal["stage", "generate"]


@dataclass(frozen=True, slots=True)
class RowError:
    """Kind of error, what to do about it in words, and the stage that found it."""

    type: ErrorType
    message: str
    stage: Stage = "stage"

    def __post_init__(self) -> None:
        """Messages may hold words of the row itself, or of a chat template."""
        object.__setattr__(self, "message", printable(self.message))
