"""Rows of an evaluation, looked up by what was run, and the cells of the report's tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

Row = dict[str, Any]
TRACES = ("#1", "#2", "#3", "#4")
MISSING = "not run"


class Results:
    """What was run. Figures are means over seeds, None where nothing was run."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def find(self, group: str, **wanted: Any) -> list[Row]:
        return [
            row
            for row in self._rows
            if row["case"]["group"] == group and all(row["case"][name] == value for name, value in wanted.items())
        ]

    def mean(self, figure: str, group: str, **wanted: Any) -> float | None:
        return mean_of([row["result"][figure] for row in self.find(group, **wanted)])

    def ratio(self, group: str, ours: Row, theirs: Row, **wanted: Any) -> float | None:
        """Throughput of one kind of case over another's, each seed of one with the same seed of the other."""
        speeds = [self._speeds(group, kind | wanted) for kind in (ours, theirs)]
        seeds = speeds[0].keys() & speeds[1].keys()
        return mean_of([speeds[0][seed] / speeds[1][seed] for seed in sorted(seeds)])

    def values(self, group: str, name: str) -> list[Any]:
        return list(dict.fromkeys(row["case"][name] for row in self.find(group)))

    def _speeds(self, group: str, wanted: Row) -> dict[int, float]:
        return {row["case"]["seed"]: row["result"]["tokens_per_s"] for row in self.find(group, **wanted)}


def mean_of(values: Sequence[float | None]) -> float | None:
    """Mean of what is there, None of nothing."""
    present = [value for value in values if value is not None]
    return mean(present) if present else None


def share(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1%}"


def gain(value: float | None) -> str:
    """Of a ratio of throughputs: how much more, in per cent."""
    return MISSING if value is None else f"{value - 1:+.1%}"


def times(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}x"


def whole(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.0f}"


def judged(form: Callable[[float | None], str], value: float | None, target: float) -> str:
    """A figure with whether it meets its target."""
    return MISSING if value is None else f"{form(value)} ({'meets' if value >= target else '**misses**'} {form(target)})"


def near(value: float | None, target: float, points: float) -> str:
    """A share with whether it lies within so many points of the paper's."""
    if value is None:
        return MISSING
    return f"{share(value)} ({'within' if abs(value - target) <= points else '**not within**'} {points:.0%} of {share(target)})"


def table(header: Sequence[object], rows: Sequence[Sequence[object]]) -> list[str]:
    """A Markdown table and an empty line."""
    return [_line(header), _line(["---"] * len(header)), *map(_line, rows), ""]


def _line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
