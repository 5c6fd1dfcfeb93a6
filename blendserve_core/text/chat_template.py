"""Chat templates are programs that come with a model: they run in a sandbox, in a process with bounded time and memory."""

from __future__ import annotations

import signal
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from blendserve_core.line_process import LineProcess

WORKER = "blendserve_core.text.render_worker"
CPU_LIMIT_S = 10
MEMORY_LIMIT_BYTES = 2 * 2**30
MAX_RENDERED_CHARS = 32 * 2**20
_CONVERSATIONS_AT_ONCE = 256
_MAX_DEATHS = 3

Conversation = Sequence[Mapping[str, Any]]


class Rendered(NamedTuple):
    """A conversation's text, or None and what is wrong."""

    text: str | None
    problem: str


class ChatTemplate:
    """A model's template. The process is started for the first conversation, and again when one has killed it."""

    def __init__(self, template: str, special_tokens: Mapping[str, Any], cpu_limit_s: int = CPU_LIMIT_S) -> None:
        self._header = [template, dict(special_tokens), cpu_limit_s]
        self._cpu_limit_s = cpu_limit_s
        self._process: LineProcess | None = None
        self._num_deaths = 0

    def render(self, conversations: Sequence[Conversation]) -> list[Rendered]:
        """Each conversation as the template writes it, open for the assistant's answer.

        Raises ValueError where the template fails to end on one conversation after the other.
        """
        rendered: list[Rendered] = []
        for start in range(0, len(conversations), _CONVERSATIONS_AT_ONCE):
            rendered += self._render_some(conversations[start : start + _CONVERSATIONS_AT_ONCE])
        return rendered

    def _render_some(self, conversations: Sequence[Conversation]) -> list[Rendered]:
        process = self._process or self._start()
        answer = process.ask(conversations)
        if answer is not None:
            return [Rendered(*one) for one in answer]
        problem = self._describe_death(process)
        if len(conversations) > 1:  # one of them was it
            return [one for conversation in conversations for one in self._render_some([conversation])]
        self._num_deaths += 1
        if self._num_deaths >= _MAX_DEATHS:
            raise ValueError(f"the model's chat template cannot be used: {problem}, for {_MAX_DEATHS} conversations")
        return [Rendered(None, problem)]

    def _start(self) -> LineProcess:
        self._process = process = LineProcess(WORKER)
        weakref.finalize(self, process.end)
        process.ask(self._header)
        return process

    def _describe_death(self, process: LineProcess) -> str:
        self._process = None
        status = process.end()
        if status == -signal.SIGXCPU:
            return f"it computes for more than {self._cpu_limit_s} s"
        return f"it ended its process (status {status})"
