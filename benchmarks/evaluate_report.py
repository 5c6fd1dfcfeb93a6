"""The evaluation as Markdown with SVG plots: our figures beside the paper's, and every target with whether it is met."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from evaluate_plots import bars, heat_map, uses

Row = dict[str, Any]
TRACES = ("#1", "#2", "#3", "#4")
TARGETS = {
    "share of the reachable time": (0.95, 0.93, 0.95, 0.93),
    "over overlapped depth-first": (1.38, 1.48, 1.38, 1.45),
    "over sequential depth-first": (1.55, 1.7, 1.6, 1.65),
    "share of the maximal prefix sharing": (0.99, 0.99, 0.99, 0.99),
}
PAPER_OVER_DFS = "19.3 to 22.7 %, mean 20.8 %"
PAPER_SHARE, PAPER_DFS_SHARE = 0.8655, 0.717
PAPER_SCALING = {2: 1.85, 4: 3.81}
NAMES = {
    ("sequential", "depth-first"): "sequential depth-first (vLLM, SGLang)",
    ("overlapped", "depth-first"): "overlapped depth-first (NanoFlow-DFS)",
    ("overlapped", "random"): "overlapped random (NanoFlow-Balance)",
    ("overlapped", "blend-paper"): "blend-paper, sampled lengths",
    ("overlapped", "blend"): "blend, sampled lengths",
}


class Results:
    """Rows of an evaluation, looked up by what was run."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def find(self, group: str, **wanted: Any) -> list[Row]:
        return [
            row
            for row in self._rows
            if row["case"]["group"] == group and all(row["case"][name] == value for name, value in wanted.items())
        ]

    def mean(self, figure: str, group: str, **wanted: Any) -> float:
        """Mean over seeds of one figure of the result."""
        return mean(row["result"][figure] for row in self.find(group, **wanted))

    def values(self, group: str, name: str) -> list[Any]:
        return list(dict.fromkeys(row["case"][name] for row in self.find(group)))


def write_report(rows: list[Row], folder: Path) -> Path:
    """Write ``report.md`` and its plots into ``folder``; returns the report's path."""
    results = Results(rows)
    sections: list[Callable[[Results, Path], list[str]]] = [
        _targets, _main, _loss, _honesty, _mixes, _models, _shards, _grid, _chunks, _scheduling,
    ]  # fmt: skip
    lines = ["# Evaluation on the simulated executor", "", *_preface(results)]
    for section in sections:
        lines += section(results, folder)
    path = folder / "report.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _preface(results: Results) -> list[str]:
    num_requests, seeds = results.values("main", "num_requests"), results.values("main", "seed")
    return [
        "Llama-3-8B on an A100-80GB unless said. The planner, scheduler and policies are those that drive the engine; seconds",
        "come from the cost model (`infra/hardware/`). Lengths are synthetic: BurstGPT-, MMLU- and OpenVid-like with the",
        f"paper's means. Main table: {num_requests[0]:,} requests a trace; `blend` with sampled lengths is the mean of seeds",
        f"{', '.join(map(str, seeds))}, the rest one seed. T_o is the practical optimum, T_reach the lower bound that counts",
        "every step's constants.",
        "",
    ]


def _targets(results: Results, _: Path) -> list[str]:
    measured = {name: [] for name in TARGETS}
    for trace in TRACES:
        ours = {"label": trace, "policy": "blend", "lengths": "sampled"}
        speed = results.mean("tokens_per_s", "main", **ours)
        found, possible = (results.mean(name, "main", **ours) for name in ("sharing_ratio", "max_sharing_ratio"))
        baseline = {"label": trace, "policy": "depth-first"}
        measured["share of the reachable time"].append(results.mean("fraction_of_reachable", "main", **ours))
        for engine in ("overlapped", "sequential"):
            other = results.mean("tokens_per_s", "main", engine=engine, **baseline)
            measured[f"over {engine} depth-first"].append(speed / other)
        measured["share of the maximal prefix sharing"].append(found / possible)
    lines = ["## Targets (blend, sampled lengths, interference 0.15)", "", _header("", *TRACES)]
    for name, values in measured.items():
        form = "{:.2f}x" if name.startswith("over") else "{:.1%}"
        cells = [_judged(form, value, target) for value, target in zip(values, TARGETS[name], strict=True)]
        lines.append(_row(name, *cells))
    return [*lines, ""]


def _judged(form: str, value: float, target: float) -> str:
    return f"{form.format(value)} ({'meets' if value >= target else 'misses'} {form.format(target)})"


def _main(results: Results, folder: Path) -> list[str]:
    lines = ["## Throughput, tokens/s (share of T_o, of T_reach)", "", _header("", *TRACES)]
    series: dict[str, list[float]] = {}
    kinds = [(*key, "sampled", name) for key, name in NAMES.items()]
    kinds.append(("overlapped", "blend", "true", "blend, true lengths"))
    for engine, policy, lengths, name in kinds:
        wanted = {"engine": engine, "policy": policy, "lengths": lengths}
        series[name] = [results.mean("tokens_per_s", "main", label=trace, **wanted) for trace in TRACES]
        shares = [
            [results.mean(f"fraction_of_{bound}", "main", label=trace, **wanted) for trace in TRACES]
            for bound in ("practical_optimum", "reachable")
        ]
        cells = [
            f"{speed:,.0f} ({of_optimum:.1%}, {of_reachable:.1%})"
            for speed, of_optimum, of_reachable in zip(series[name], *shares, strict=True)
        ]
        lines.append(_row(name, *cells))
    _save(folder, "throughput.svg", bars("Throughput by policy and engine", TRACES, series, "tokens/s"))
    panels = {}
    for policy in ("depth-first", "blend"):
        row = results.find("main", label="#1", policy=policy, engine="overlapped", lengths="sampled")[0]
        panels[policy] = {"compute busy": row["use"]["tc_s"], "memory busy": row["use"]["tm_s"]}
    _save(folder, "resources.svg", uses("Trace #1: how busy both resources are over the run", panels))
    return [*lines, "", "![throughput](throughput.svg)", "", "![resource use over time](resources.svg)", ""]


def _loss(results: Results, _: Path) -> list[str]:
    parts = ("wrong_bottleneck", "step_constants", "ramp", "tail", "recomputation")
    lines = ["## Where blend loses, share of its time", "", _header("", *(name.replace("_", " ") for name in parts), "warm-up")]
    for row in results.find("main", policy="blend"):
        case, seconds = row["case"], row["result"]["seconds"]
        name = f"{case['label']}, {case['lengths']}, seed {case['seed']}"
        warm_up = row["result"]["warm_up_s"] / seconds
        lines.append(_row(name, *(f"{row['loss'][part] / seconds:.1%}" for part in parts), f"{warm_up:.1%}"))
    note = "The first five add up to the distance from T_reach; the warm-up's time is spread over them and shown on its own."
    return [*lines, "", note, ""]


def _honesty(results: Results, _: Path) -> list[str]:
    num_requests = results.values("paper", "num_requests")[0]
    lines = [f"## The paper's interference, 0.35: share of T_o ({num_requests:,} requests)", ""]
    lines.append(_header("", *TRACES, "mean", "paper"))
    for policy, lengths, paper in (
        ("depth-first", "sampled", f"{PAPER_DFS_SHARE:.1%}"),
        ("random", "sampled", ""),
        ("blend-paper", "sampled", f"{PAPER_SHARE:.1%}"),
        ("blend-paper", "true", ""),
        ("blend", "sampled", ""),
    ):
        wanted = {"policy": policy, "lengths": lengths}
        shares = [results.mean("fraction_of_practical_optimum", "paper", label=trace, **wanted) for trace in TRACES]
        cells = [f"{share:.1%}" for share in (*shares, mean(shares))]
        lines.append(_row(policy if policy in ("depth-first", "random") else f"{policy}, {lengths} lengths", *cells, paper))
    gains = [_gain(results, "paper", "blend-paper", label=trace) for trace in TRACES]
    lines.append(_row("blend-paper over depth-first", *(f"{g:+.1%}" for g in (*gains, mean(gains))), PAPER_OVER_DFS))
    return [*lines, ""]


def _mixes(results: Results, _: Path) -> list[str]:
    lines = ["## Other compute-heavy traces, density 1.1, sharing 25 %, over overlapped depth-first", ""]
    return lines + _gains(results, "mixes", "1.08x to 1.31x")


def _models(results: Results, _: Path) -> list[str]:
    lines = ["## Other models on trace #1's mix, over overlapped depth-first", ""]
    return lines + _gains(results, "models", "+15.2 % mean, 89.9 % of T_o")


def _gains(results: Results, group: str, paper: str) -> list[str]:
    lines = [_header("", "blend-paper", "blend", "share of T_reach, depth-first", "blend")]
    for label in results.values(group, "label"):
        gains = [_gain(results, group, policy, label=label) for policy in ("blend-paper", "blend")]
        shares = [results.mean("fraction_of_reachable", group, label=label, policy=p) for p in ("depth-first", "blend")]
        lines.append(_row(label, *(f"{g:+.1%}" for g in gains), *(f"{share:.1%}" for share in shares)))
    sizes = results.find(group)[0]["case"] if results.find(group) else None
    note = f"{sizes['num_requests']:,} requests, long outputs of {sizes['mean_output']:,} tokens mean. " if sizes else ""
    return [*lines, "", f"{note}Paper: {paper}.", ""]


def _gain(results: Results, group: str, policy: str, **wanted: Any) -> float:
    ours = results.mean("tokens_per_s", group, policy=policy, lengths="sampled", **wanted)
    return ours / results.mean("tokens_per_s", group, policy="depth-first", **wanted) - 1


def _shards(results: Results, _: Path) -> list[str]:
    lines = ["## Data parallel, trace #3, speed-up over one shard", "", _header("shards", "blend", "limit", "paper")]
    one = results.find("shards", num_shards=1)[0]["result"]
    for row in results.find("shards"):
        num_shards, result = row["case"]["num_shards"], row["result"]
        limit = one["t_reachable_s"] / result["t_reachable_s"]
        paper = f"{PAPER_SCALING[num_shards]}x" if num_shards in PAPER_SCALING else ""
        lines.append(_row(num_shards, f"{one['seconds'] / result['seconds']:.2f}x", f"{limit:.2f}x", paper))
    return [*lines, ""]


def _grid(results: Results, folder: Path) -> list[str]:
    rows = results.find("grid", policy="blend")
    gains = {
        (f"{r['case']['sharing']:.0%} shared", f"{r['case']['density']:.2f}"): _gain(
            results, "grid", "blend", density=r["case"]["density"], sharing=r["case"]["sharing"]
        )
        for r in rows
    }
    densities = [f"{value:.2f}" for value in results.values("grid", "density")]
    sharings = [f"{value:.0%} shared" for value in results.values("grid", "sharing")]
    _save(folder, "grid.svg", heat_map("blend over overlapped depth-first, by density", sharings, densities, gains))
    low, high = min(gains.values()), max(gains.values())
    case = rows[0]["case"]
    return [
        f"## {len(gains)} mixes of density and sharing",
        "",
        f"{case['num_requests']:,} requests each, long outputs of {case['mean_output']:,} tokens mean, interference 0.15: "
        f"{low:+.1%} to {high:+.1%}, mean {mean(gains.values()):+.1%}. Paper: +14 % to +34 %, mean +22.5 %.",
        "",
        "![gain by density and sharing](grid.svg)",
        "",
    ]


def _chunks(results: Results, _: Path) -> list[str]:
    sizes = results.values("chunk", "max_step_tokens")
    lines = ["## Chunk size of the baselines, tokens/s", "", _header("", *(f"{size:,} tokens" for size in sizes))]
    for label in results.values("chunk", "label"):
        for policy in results.values("chunk", "policy"):
            wanted = {"label": label, "policy": policy}
            speeds = [results.mean("tokens_per_s", "chunk", max_step_tokens=size, **wanted) for size in sizes]
            lines.append(_row(f"{label}, {policy}", *(f"{speed:,.0f}" for speed in speeds)))
    return [*lines, ""]


def _scheduling(results: Results, _: Path) -> list[str]:
    lines = ["## What scheduling costs", "", _header("", "ms a step, mean", "99th percentile", "steps", "simulation s")]
    for row in results.find("main", label="#1"):
        case, result = row["case"], row["result"]
        name = f"#1, {case['engine']} {case['policy']}, {case['lengths']} lengths, seed {case['seed']}"
        times = (f"{result['schedule_ms_mean']:.3f}", f"{result['schedule_ms_p99']:.3f}")
        lines.append(_row(name, *times, f"{result['num_steps']:,}", f"{result['simulation_s']:.0f}"))
    return [*lines, ""]


def _header(*cells: str) -> str:
    return f"{_row(*cells)}\n{_row(*('---' for _ in cells))}"


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _save(folder: Path, name: str, svg: str) -> None:
    (folder / name).write_text(svg, encoding="utf-8")
