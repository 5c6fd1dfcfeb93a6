"""The evaluation as Markdown with SVG plots: every target with whether it is met, and our figures beside the paper's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from evaluate_loss import LOSSES
from evaluate_paper import PAPER_SECTIONS
from evaluate_plots import bars, save, uses
from evaluate_results import TRACES, Results, Row, judged, share, table, times, whole

TARGETS = {
    "share of the reachable time": (share, (0.95, 0.93, 0.95, 0.93)),
    "over overlapped depth-first (NanoFlow-DFS)": (times, (1.38, 1.48, 1.38, 1.45)),
    "over sequential depth-first (vLLM, SGLang)": (times, (1.55, 1.7, 1.6, 1.65)),
    "share of the maximal prefix sharing": (share, (0.99, 0.99, 0.99, 0.99)),
    "share of the reachable time, true lengths": (share, (0.96, 0.96, 0.96, 0.96)),
}
SAMPLED, TRUE = ({"policy": "blend", "lengths": lengths} for lengths in ("sampled", "true"))
DEPTH_FIRST = {engine: {"policy": "depth-first", "engine": engine} for engine in ("overlapped", "sequential")}
KINDS = {
    "sequential depth-first (vLLM, SGLang)": DEPTH_FIRST["sequential"],
    "overlapped depth-first (NanoFlow-DFS)": DEPTH_FIRST["overlapped"],
    "overlapped random (NanoFlow-Balance)": {"policy": "random"},
    "blend-paper, sampled lengths": {"policy": "blend-paper"},
    "blend, sampled lengths": SAMPLED,
    "blend, true lengths": TRUE,
}
Section = Callable[[Results, Path], list[str]]


def write_report(rows: list[Row], num_missing: int, folder: Path) -> Path:
    """Write ``report.md`` and its plots into ``folder``; returns the report's path."""
    results = Results(rows)
    lines = ["# Evaluation on the simulated executor", "", *_preface(results, num_missing)]
    sections: list[Section] = [_targets, _main, _loss, *PAPER_SECTIONS, _chunks, _scheduling, _workloads]
    for section in sections:
        lines += section(results, folder)
    path = folder / "report.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _preface(results: Results, num_missing: int) -> list[str]:
    sizes, seeds = results.values("main", "num_requests"), results.values("main", "seed")
    cut = f"**{num_missing} cases were not run,** for want of time or for a reason that was printed. Run it again to go on.\n"
    return [
        *([cut] if num_missing else []),
        "Llama-3-8B on an A100-80GB unless said. Planner, scheduler and policies are those that drive the engine;",
        "seconds come from the cost model of `infra/hardware/`. Lengths are synthetic (last section). T_o is the paper's",
        "practical optimum; T_reach a lower bound that counts the constants of the steps that must happen. Both come from the",
        f"workload and the cost model alone. Main tables: {', '.join(map(whole, sizes))} requests a trace, interference 0.15,",
        f"means over seeds {', '.join(map(str, seeds))} where more than one was run; lengths sampled from 1 % of the requests.",
        "Baselines have their best chunk size.",
        "",
    ]


def _targets(results: Results, _: Path) -> list[str]:
    rows = []
    for name, (form, targets) in TARGETS.items():
        cells = [judged(form, _target(results, name, trace), target) for trace, target in zip(TRACES, targets, strict=True)]
        rows.append([name, *cells])
        if name.startswith("over"):
            rows.append(["at most, at T_reach itself", *(times(_most_gain(results, _engine(name), trace)) for trace in TRACES)])
    return ["## Targets (blend, sampled lengths, interference 0.15)", "", *table(["", *TRACES], rows)]


def _engine(target_name: str) -> str:
    return "overlapped" if "overlapped" in target_name else "sequential"


def _most_gain(results: Results, engine: str, trace: str) -> float | None:
    """How far above this baseline the bound lies that no schedule of an overlapping engine can pass."""
    seconds = results.mean("seconds", "main", label=trace, **DEPTH_FIRST[engine])
    bound = results.mean("t_reachable_s", "main", label=trace, **SAMPLED)
    return seconds / bound if seconds is not None and bound is not None else None


def _target(results: Results, name: str, trace: str) -> float | None:
    if name.startswith("over"):
        return results.ratio("main", SAMPLED, DEPTH_FIRST[_engine(name)], label=trace)
    if "prefix" in name:
        found, most = (results.mean(f, "main", label=trace, **SAMPLED) for f in ("sharing_ratio", "max_sharing_ratio"))
        return found / most if found is not None and most else None
    return results.mean("fraction_of_reachable", "main", label=trace, **(TRUE if "true" in name else SAMPLED))


def _main(results: Results, folder: Path) -> list[str]:
    rows, series = [], {}
    for name, kind in KINDS.items():
        figures = [
            [results.mean(figure, "main", label=trace, **kind) for trace in TRACES]
            for figure in ("tokens_per_s", "fraction_of_practical_optimum", "fraction_of_reachable")
        ]
        rows.append([name, *(f"{whole(s)} ({share(o)}, {share(r)})" for s, o, r in zip(*figures, strict=True))])
        series[name] = [speed or 0.0 for speed in figures[0]]
    save(folder, "throughput.svg", bars("Throughput by policy and engine", TRACES, series, "tokens/s"))
    lines = ["## Throughput, tokens/s (share of T_o, of T_reach)", "", *table(["", *TRACES], rows)]
    return [*lines, "![throughput](throughput.svg)", "", *_resources(results, folder)]


def _resources(results: Results, folder: Path) -> list[str]:
    """The paper's Figure 10: use of both resources over the run."""
    panels = {}
    for name, kind in KINDS.items():
        for row in results.find("main", label="#1", **kind)[:1]:
            if "use" in row:
                panels[name] = {"compute busy": row["use"]["tc_s"], "memory busy": row["use"]["tm_s"]}
    if not panels:
        return []
    save(folder, "resources.svg", uses("Trace #1: how busy both resources are over the run", panels))
    return ["![resource use over time](resources.svg)", ""]


def _loss(results: Results, _: Path) -> list[str]:
    rows = []
    for group, policy in (("main", "blend"), ("main", "blend-paper"), ("paper", "blend-paper"), ("paper", "depth-first")):
        for row in results.find(group, policy=policy):
            if "loss" not in row:
                continue
            case, seconds = row["case"], row["result"]["seconds"]
            name = f"{policy} {case['label']}, {case['lengths']}, seed {case['seed']}, interference {case['interference']}"
            parts = (row["loss"][part] / seconds for part in LOSSES)
            rows.append([name, *map(share, parts), share(row["result"]["warm_up_s"] / seconds)])
    header = ["", *(name.replace("_", " ") for name in LOSSES), "warm-up"]
    note = "The first five add up to the distance from T_reach; the warm-up's time is spread over them and shown on its own."
    return ["## Where the time beyond T_reach goes, share of the run", "", *table(header, rows), note, ""]


def _chunks(results: Results, _: Path) -> list[str]:
    sizes = sorted(results.values("chunk", "max_step_tokens"))
    kinds = dict.fromkeys((row["case"]["label"], row["case"]["engine"], row["case"]["policy"]) for row in results.find("chunk"))
    rows = []
    for label, engine, policy in kinds:
        wanted = {"label": label, "engine": engine, "policy": policy}
        speeds = [results.mean("tokens_per_s", "chunk", max_step_tokens=size, **wanted) for size in sizes]
        best = max((speed for speed in speeds if speed is not None), default=None)
        rows.append([f"{label}, {engine} {policy}", *(f"**{whole(s)}**" if s == best else whole(s) for s in speeds)])
    size = results.values("chunk", "num_requests")
    title = f"## Chunk size: throughput at {whole(size[0])} requests; the best is used elsewhere" if size else "## Chunk size"
    return [title, "", *table(["", *(f"{size:,} tokens" for size in sizes)], rows)]


def _scheduling(results: Results, _: Path) -> list[str]:
    rows = []
    for row in results.find("main", label="#1", seed=0):
        case, result = row["case"], row["result"]
        name = f"#1, {case['engine']} {case['policy']}, {case['lengths']} lengths"
        figures = (f"{result['schedule_ms_mean']:.3f}", f"{result['schedule_ms_p99']:.3f}")
        rows.append([name, *figures, whole(result["num_steps"]), f"{result['simulation_s']:.0f}"])
    header = ["", "ms a step, mean", "99th percentile", "steps", "simulation s"]
    note = "Measured while two simulations ran side by side."
    return ["## What scheduling costs", "", *table(header, rows), note, ""]


def _workloads(results: Results, _: Path) -> list[str]:
    """What the workloads are, so that nobody takes them for recordings."""
    rows = []
    for trace in TRACES:
        result = next((row["result"] for row in results.find("main", label=trace, **SAMPLED)), None)
        if result is not None:
            mix = next(row["mix"] for row in results.find("main", label=trace, **SAMPLED))
            lengths = (whole(mix[name]) for name in ("mean_prompt_tokens", "mean_output_tokens", "longest_output"))
            rows.append([trace, *lengths, f"{mix['density']:.2f}", share(result["max_sharing_ratio"])])
    header = ["", "mean prompt", "mean output", "longest output", "density", "sharing"]
    return [
        "## The workloads (synthetic)",
        "",
        "Log-normal lengths with the means of the paper's table; the spread of outputs is what gives each trace the paper's",
        "density: BurstGPT-like 17.9 (paper 17.78), WildChat-like 2.2 (2.13), MMLU-like 56.5 (54.91), OpenVid-like 0.050",
        "(0.05). Videos of one length would have density 0.10. A mix takes the draw of typical memory time, so that its few",
        "giants do not move its density.",
        "",
        *table(header, rows),
    ]
