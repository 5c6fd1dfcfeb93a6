"""Stop strings: found while tokens arrive, wherever they fall inside or across tokens, and cut off the final text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from blendserve_core.text.tokenizer import PromptTokenizer

# A window may open in the middle of a character, and some decoders strip the first space of what they are given.
_MARGIN_CHARS = 16
_REPLACEMENT = "\ufffd"


@dataclass(slots=True)
class _Watched:
    """One request's stop strings, all its tokens, and from which of them on the text is searched."""

    stop_strings: tuple[str, ...]
    num_kept_chars: int
    token_ids: list[int] = field(default_factory=list)
    window_start: int = 0


class StopWatcher:
    """Finds stop strings as tokens arrive, decoding a window of the last few tokens instead of the whole list.

    The window always holds more text than the longest stop string, so no match can begin before it. A match in the window is
    confirmed on the whole text, which alone decides.
    """

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self._tokenizer = tokenizer
        self._watched: dict[int, _Watched] = {}

    def add(self, request: int, stop_strings: Sequence[str]) -> None:
        """Watch a request from its first output token on. Without stop strings there is nothing to watch."""
        if stop_strings:
            longest = max(len(stop) for stop in stop_strings)
            self._watched[request] = _Watched(tuple(stop_strings), num_kept_chars=longest + _MARGIN_CHARS)

    def push(self, request: int, token_id: int) -> bool:
        """Take a request's next token; True when a stop string is now in its text."""
        watched = self._watched.get(request)
        if watched is None:
            return False
        watched.token_ids.append(token_id)
        window = self._decode_window(watched)
        if any(stop in window for stop in watched.stop_strings):
            return self.final_text(watched.token_ids, watched.stop_strings)[1]
        self._narrow(watched, len(window))
        return False

    def drop(self, request: int) -> None:
        """Forget a request that has ended."""
        self._watched.pop(request, None)

    def final_text(self, token_ids: Sequence[int], stop_strings: Sequence[str]) -> tuple[str, bool]:
        """Text of all output tokens, cut right before the earliest stop string, and whether there was one.

        A character whose bytes were not all generated is no text yet: replacement characters at the end are left out.
        """
        text = self._tokenizer.decode(token_ids).rstrip(_REPLACEMENT)
        found = [position for stop in stop_strings if (position := text.find(stop)) >= 0]
        return (text[: min(found)], True) if found else (text, False)

    def _decode_window(self, watched: _Watched) -> str:
        return self._tokenizer.decode(watched.token_ids[watched.window_start :])

    def _narrow(self, watched: _Watched, num_window_chars: int) -> None:
        """Drop the first half of a long window, where the second half holds enough text alone."""
        if num_window_chars < 2 * watched.num_kept_chars:
            return
        before = watched.window_start
        watched.window_start = (before + len(watched.token_ids)) // 2
        if len(self._decode_window(watched).rstrip(_REPLACEMENT)) < watched.num_kept_chars:
            watched.window_start = before
