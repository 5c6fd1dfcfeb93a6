"""Where the time of an engine's steps goes, kept as a Chrome trace (chrome://tracing, ui.perfetto.dev)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

Call = TypeVar("Call", bound=Callable[..., Any])

REST = "rest"
# Beyond this many steps only the sums go on: a viewer could not show more anyway.
MAX_STEPS_DRAWN = 20_000


class Tracer(Protocol):
    """Told what an engine does. A span inside another is not counted for the outer one as well."""

    def span(self, kind: str) -> AbstractContextManager[None]: ...

    def end_step(self, **amounts: int) -> None: ...


class NoTrace:
    """For engines that nobody looks into."""

    def __init__(self) -> None:
        self._nothing = nullcontext()

    def span(self, kind: str) -> AbstractContextManager[None]:
        return self._nothing

    def end_step(self, **amounts: int) -> None:
        pass


class StepTrace:
    """Sums what each step spends in each kind of span; what lies outside all of them is "rest".

    Layers alternate between kinds thousands of times a second. A step is drawn with one block per kind, one after the other,
    as long as that kind took in all.
    """

    def __init__(self, rank: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._rank = rank
        self._clock = clock
        self._open = [REST]
        self._in_step: dict[str, float] = {}
        self._totals: dict[str, float] = {}
        self._events: list[dict[str, Any]] = []
        self._num_steps = 0
        self._step_start = self._last = clock()

    @property
    def split(self) -> dict[str, float]:
        """Seconds of each kind in all steps so far, largest first."""
        return dict(sorted(self._totals.items(), key=lambda item: -item[1]))

    def span(self, kind: str) -> AbstractContextManager[None]:
        return _Span(self, kind)

    def enter(self, kind: str) -> None:
        self._charge()
        self._open.append(kind)

    def leave(self) -> None:
        self._charge()
        self._open.pop()

    def end_step(self, **amounts: int) -> None:
        """Close a step; ``amounts`` are shown with it."""
        self._charge()
        if self._num_steps < MAX_STEPS_DRAWN:
            self._draw(amounts)
        for kind, seconds in self._in_step.items():
            self._totals[kind] = self._totals.get(kind, 0.0) + seconds
        self._in_step = {}
        self._num_steps += 1
        self._step_start = self._last

    def save(self, path: Path) -> None:
        """Write the trace; ``otherData`` holds the sums. Whole or not at all."""
        trace = {"traceEvents": self._events, "otherData": {"num_steps": self._num_steps, "seconds": self.split}}
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(trace), encoding="utf-8")
        temporary.replace(path)

    def _charge(self) -> None:
        """Time since the last change goes to the innermost open span."""
        now, kind = self._clock(), self._open[-1]
        self._in_step[kind] = self._in_step.get(kind, 0.0) + now - self._last
        self._last = now

    def _draw(self, amounts: dict[str, int]) -> None:
        self._add_event(f"step {self._num_steps}", self._step_start, self._last - self._step_start, args=amounts)
        start = self._step_start
        for kind, seconds in self._in_step.items():
            self._add_event(kind, start, seconds)
            start += seconds

    def _add_event(self, name: str, start: float, seconds: float, **more: Any) -> None:
        place = {"ph": "X", "pid": self._rank, "tid": 0, "ts": round(start * 1e6, 1), "dur": round(seconds * 1e6, 1)}
        self._events.append({"name": name, **place, **more})


class _Span:
    __slots__ = ("_kind", "_trace")

    def __init__(self, trace: StepTrace, kind: str) -> None:
        self._trace = trace
        self._kind = kind

    def __enter__(self) -> None:
        self._trace.enter(self._kind)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._trace.leave()


def traced(call: Call, tracer: Tracer, kind: str) -> Call:
    """The same function, with every call in a span."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with tracer.span(kind):
            return call(*args, **kwargs)

    return run  # pyright: ignore[reportReturnType]


def read_split(path: Path) -> dict[str, float]:
    """Seconds by kind of a trace that :meth:`StepTrace.save` wrote, largest first."""
    return json.loads(path.read_text(encoding="utf-8"))["otherData"]["seconds"]
