"""SVG plots drawn by hand: grouped bars, stacked uses over time, and a heat map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

COLOURS = ("#9aa5b1", "#5b8db8", "#7fb069", "#e8a33d", "#c8553d", "#6c4f77", "#3d5a80")
WIDTH = 860
LEFT = 70
FONT = 'font-family="sans-serif" font-size="12"'


def save(folder: Path, name: str, svg: str) -> None:
    (folder / name).write_text(svg, encoding="utf-8")


def bars(title: str, groups: Sequence[str], series: Mapping[str, Sequence[float]], unit: str) -> str:
    """One cluster of bars per group, one bar per series."""
    height, base, top = 320, 270, 50
    tallest = max(max(values) for values in series.values()) or 1.0
    cluster = (WIDTH - LEFT - 20) / len(groups)
    bar = cluster * 0.85 / len(series)
    parts = [_text(LEFT, 20, title, bold=True), _text(LEFT, 38, unit)]
    for number, (name, values) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        for position, value in enumerate(values):
            x, tall = LEFT + position * cluster + number * bar, value / tallest * (base - top - 10)
            parts.append(_rect(x, base - tall, bar * 0.92, tall, colour, f"{groups[position]}, {name}: {value:,.0f} {unit}"))
    parts += [_text(LEFT + (i + 0.4) * cluster, base + 16, name, anchor="middle") for i, name in enumerate(groups)]
    return _svg(height, parts + _legend(series, height - 18))


def uses(title: str, panels: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Per panel two lines over the run: the share of time each resource is busy."""
    tall, gap, top = 110, 38, 50
    parts = [_text(LEFT, 20, title, bold=True)]
    names: dict[str, Sequence[float]] = {}
    for number, (panel, lines) in enumerate(panels.items()):
        base = top + number * (tall + gap) + tall
        parts.append(_text(LEFT, base - tall - 6, panel))
        parts.append(f'<line x1="{LEFT}" y1="{base}" x2="{WIDTH - 20}" y2="{base}" stroke="#444"/>')
        parts += [_text(LEFT - 8, base - share * tall + 4, f"{share:.0%}", anchor="end") for share in (0, 0.5, 1)]
        for colour, (name, values) in zip((COLOURS[1], COLOURS[4]), lines.items(), strict=False):
            parts.append(_line(values, base, tall, colour))
            names[name] = values
    height = top + len(panels) * (tall + gap) + 20
    return _svg(height, parts + _legend(names, height - 12, (COLOURS[1], COLOURS[4])))


def heat_map(title: str, rows: Sequence[str], columns: Sequence[str], values: dict[tuple[str, str], float]) -> str:
    """A cell per (row, column), from pale (least) to dark (most), with its value."""
    side, tall, top = (WIDTH - LEFT - 20) / len(columns), 34, 60
    low, high = min(values.values()), max(values.values())
    parts = [_text(LEFT, 20, title, bold=True)]
    for i, row in enumerate(rows):
        parts.append(_text(LEFT - 8, top + i * tall + tall * 0.6, row, anchor="end"))
        for j, column in enumerate(columns):
            if (row, column) not in values:
                continue
            value = values[row, column]
            strength = (value - low) / (high - low) if high > low else 0.5
            colour = f"rgb({int(245 - 185 * strength)},{int(240 - 110 * strength)},{int(225 - 60 * strength)})"
            parts.append(_rect(LEFT + j * side, top + i * tall, side - 2, tall - 2, colour, f"{row}, {column}: {value:+.1%}"))
            parts.append(_text(LEFT + (j + 0.5) * side, top + i * tall + tall * 0.6, f"{value:+.0%}", anchor="middle"))
    parts += [_text(LEFT + (j + 0.5) * side, top - 8, column, anchor="middle") for j, column in enumerate(columns)]
    return _svg(top + len(rows) * tall + 20, parts)


def _line(values: Sequence[float], base: float, tall: float, colour: str) -> str:
    step = (WIDTH - LEFT - 20) / max(len(values) - 1, 1)
    points = " ".join(f"{LEFT + i * step:.1f},{base - value * tall:.1f}" for i, value in enumerate(values))
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>'


def _rect(x: float, y: float, width: float, height: float, colour: str, tip: str) -> str:
    box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {box} fill="{colour}"><title>{escape(tip)}</title></rect>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight} {FONT}>{escape(text)}</text>'


def _legend(names: Mapping[str, Sequence[float]], y: float, colours: Sequence[str] = COLOURS) -> list[str]:
    parts, x = [], float(LEFT)
    for number, name in enumerate(names):
        parts += [_rect(x, y - 10, 12, 12, colours[number % len(colours)], name), _text(x + 17, y, name)]
        x += 30 + 7 * len(name)
    return parts


def _svg(height: float, parts: list[str]) -> str:
    box = f'width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{background}{"".join(parts)}</svg>\n'
