"""Text of rows, models and servers in messages: on one line, of bounded length, without characters that steer a terminal."""

from __future__ import annotations

from reprlib import Repr
from typing import Any

MAX_MESSAGE_CHARS = 2000

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def printable(text: str, max_chars: int = MAX_MESSAGE_CHARS) -> str:
    """The text with every control, format and separator character but the space escaped, cut after ``max_chars``."""
    shown = text if text.isprintable() else "".join(map(_escaped, text[: max_chars + 1]))
    return shown if len(shown) <= max_chars else shown[:max_chars] + " ..."


def quoted(value: Any) -> str:
    """A value as Python would write it, shortened and printable, to stand inside a message."""
    return printable(_SHORT.repr(value))


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
