"""The report's sections that stand beside the paper's figures one by one."""

from __future__ import annotations

from pathlib import Path

from evaluate_plots import heat_map, save
from evaluate_results import TRACES, Results, gain, mean_of, near, share, table, times, whole

PAPER_SHARE, PAPER_DEPTH_FIRST_SHARE, POINTS = 0.8655, 0.717, 0.04
PAPER_SPEEDS = {"#1": (11080, 1.85, 3.78), "#2": (8408, 1.93, 3.86), "#3": (8403, 1.85, 3.81), "#4": (6325, 1.93, 3.88)}
"""tokens/s of one rank, and the speed-up of two and four."""

DFS, RANDOM, PAPER, BLEND = (
    {"policy": name, "lengths": "sampled"} for name in ("depth-first", "random", "blend-paper", "blend")
)
PAPER_TRUE = PAPER | {"lengths": "true"}

SHARING, WARM_UP = ("sharing_ratio", "max_sharing_ratio"), ("warm_up_s", "seconds")


def honesty(results: Results, _: Path) -> list[str]:
    """With the paper's interference the paper's policy must come out as the paper says."""
    rows = []
    kinds = ((DFS, PAPER_DEPTH_FIRST_SHARE), (RANDOM, None), (PAPER, PAPER_SHARE), (PAPER_TRUE, PAPER_SHARE), (BLEND, None))
    for kind, paper in kinds:
        shares = [results.mean("fraction_of_practical_optimum", "paper", label=trace, **kind) for trace in TRACES]
        average = mean_of(shares)
        name = f"{kind['policy']}{', true lengths' * (kind is PAPER_TRUE)}"
        rows.append([name, *map(share, shares), share(average) if paper is None else near(average, paper, POINTS)])
        if kind is PAPER:
            rows.append(["blend-paper, its warm-up not counted", *_main_run_shares(results)])
    size = results.values("paper", "num_requests")
    title = f"## The paper's interference, 0.35: share of T_o{f' ({whole(size[0])} requests)' if size else ''}"
    return [title, "", *table(["", *TRACES, "mean"], rows), *_gains_of_paper(results)]


def _main_run_shares(results: Results) -> list[str]:
    """blend-paper's share of T_o were the sample free, as the paper has it: here the warm-up waits for its longest output."""
    shares: list[float | None] = []
    for trace in TRACES:
        runs = [row["result"] for row in results.find("paper", label=trace, **PAPER)]
        shares.append(mean_of([run["t_practical_optimum_s"] / (run["seconds"] - run["warm_up_s"]) for run in runs]))
    return [*map(share, shares), near(mean_of(shares), PAPER_SHARE, POINTS)]


def _gains_of_paper(results: Results) -> list[str]:
    over_dfs = [results.ratio("paper", PAPER, DFS, label=trace) for trace in TRACES]
    over_random = [results.ratio("paper", PAPER, RANDOM, label=trace) for trace in TRACES]
    speeds = [results.mean("tokens_per_s", "paper", label=trace, **PAPER) for trace in TRACES]
    rows = [
        ["blend-paper over NanoFlow-DFS", *map(gain, over_dfs), gain(mean_of(over_dfs)), "+19.3 to +22.7 %, mean +20.8 %"],
        ["over NanoFlow-Balance", *map(gain, over_random), gain(mean_of(over_random[:2])) + " (#1, #2)", "+36 % (#1, #2)"],
        ["blend-paper, tokens/s", *map(whole, speeds), "", " / ".join(f"{PAPER_SPEEDS[trace][0]:,}" for trace in TRACES)],
        ["share of the maximal sharing", *(share(_quotient(results, trace, *SHARING)) for trace in TRACES), "", "97 %"],
        ["warm-up, share of its time", *(share(_quotient(results, trace, *WARM_UP)) for trace in TRACES), "", "not counted"],
    ]
    return table(["", *TRACES, "mean", "paper"], rows)


def _quotient(results: Results, trace: str, part: str, whole: str) -> float | None:
    """One of blend-paper's figures over another."""
    above, below = (results.mean(figure, "paper", label=trace, **PAPER) for figure in (part, whole))
    return above / below if above is not None and below else None


def mixes(results: Results, _: Path) -> list[str]:
    title = "## Other compute-heavy traces, density 1.1, sharing 25 %, interference 0.35"
    return [title, "", *_gains(results, "mixes", "1.08x to 1.31x over NanoFlow-DFS")]


def models(results: Results, _: Path) -> list[str]:
    title = "## Other models on trace #1's mix, interference 0.35"
    paper = "70B on 8 GPUs +18.6 %, 90.8 % of T_o; the other four +15.2 % on average, 89.9 % of T_o"
    return [title, "", *_gains(results, "models", paper)]


def _gains(results: Results, group: str, paper: str) -> list[str]:
    rows = []
    for label in results.values(group, "label"):
        gains = [results.ratio(group, kind, DFS, label=label) for kind in (PAPER, BLEND)]
        of_optimum = [results.mean("fraction_of_practical_optimum", group, label=label, **k) for k in (DFS, PAPER, BLEND)]
        of_reach = [results.mean("fraction_of_reachable", group, label=label, **kind) for kind in (DFS, PAPER, BLEND)]
        shares = (f"{share(o)} ({share(r)})" for o, r in zip(of_optimum, of_reach, strict=True))
        devices = results.find(group, label=label)[0]["devices"]
        rows.append([f"{label}, {devices} GPU{'s' * (devices > 1)}", *map(gain, gains), *shares])
    header = ["over NanoFlow-DFS; share of T_o (T_reach)", "blend-paper", "blend", "depth-first", "blend-paper", "blend"]
    return [*table(header, rows), f"{_size(results, group)}Paper: {paper}.", ""]


def shards(results: Results, _: Path) -> list[str]:
    """Speed-up over one rank, beside what T_reach of so many ranks allows."""
    rows = []
    for label in results.values("shards", "label"):
        for row in sorted(
            results.find("shards", label=label), key=lambda row: (row["case"]["num_shards"], row["case"]["lengths"])
        ):
            num_shards, lengths, result = row["case"]["num_shards"], row["case"]["lengths"], row["result"]
            one = results.find("main", label=label, seed=0, policy="blend", lengths=lengths)
            first = one[0]["result"] if one else None
            limit, speed_up = ((first[f] / result[f] if first else None) for f in ("t_reachable_s", "seconds"))
            paper = dict(zip((1, 2, 4), (1.0, *PAPER_SPEEDS[label][1:]), strict=True)).get(num_shards)
            ends = [(result["warm_up_s"] + seconds) / result["seconds"] for seconds in result["shard_s"]]
            of_limit, shared = result["fraction_of_reachable"], result["sharing_ratio"] / result["max_sharing_ratio"]
            shares = map(share, (of_limit, min(ends), sum(ends) / len(ends), shared))
            rows.append(
                [f"{label}, {num_shards}, {lengths}", times(speed_up), times(limit), *shares, times(paper) if paper else ""]
            )
    header = [
        "trace, ranks, lengths",
        "blend",
        "limit of T_reach",
        "share of its own T_reach",
        "first rank ends",
        "ranks end on average",
    ]
    header += ["share of maximal sharing", "paper"]
    note = "Ends are shares of the time at which the last rank ends. The limit is below the number of ranks where the longest "
    note += (
        "outputs make ranks step on without work to fill the steps. Where one output's own time is most of T_reach, its rank "
    )
    note += (
        "would have to run little else from the first step on, which takes knowing the output beforehand: sampled lengths do "
    )
    note += "not tell which of a class it is."
    return ["## Data parallel: speed-up over one rank", "", *table(header, rows), f"{_size(results, 'shards')}{note}", ""]


def grid(results: Results, folder: Path) -> list[str]:
    """The paper's Figure 11."""
    lines = ["## Mixes of density and sharing, interference 0.35, over NanoFlow-DFS", ""]
    for kind in (PAPER, BLEND):
        gains = {
            (row["case"]["sharing"], row["case"]["density"]): results.ratio(
                "grid", kind, DFS, density=row["case"]["density"], sharing=row["case"]["sharing"]
            )
            for row in results.find("grid", **kind)
        }
        found = {key: value - 1 for key, value in gains.items() if value is not None}
        if found:
            lines += _heat_map(kind["policy"], found, folder)
    return [*lines, f"{_size(results, 'grid')}Paper (65 mixes, simulated): +14 % to +34 %, mean +22.5 %.", ""]


def _heat_map(policy: str, gains: dict[tuple[float, float], float], folder: Path) -> list[str]:
    sharings, densities = (sorted({key[axis] for key in gains}) for axis in (0, 1))
    cells = {(f"{s:.0%} shared", f"{d:.2f}"): value for (s, d), value in gains.items()}
    rows, columns = [f"{s:.0%} shared" for s in sharings], [f"{d:.2f}" for d in densities]
    save(folder, f"grid-{policy}.svg", heat_map(f"{policy} over overlapped depth-first, by density", rows, columns, cells))
    values = gains.values()
    span = f"{policy}, {len(gains)} mixes: {min(values):+.1%} to {max(values):+.1%}, mean {sum(values) / len(values):+.1%}."
    return [span, "", f"![gain by density and sharing](grid-{policy}.svg)", ""]


def _size(results: Results, group: str) -> str:
    case = next((row["case"] for row in results.find(group)), None)
    if case is None:
        return ""
    return f"{case['num_requests']:,} requests, long outputs of {case['mean_output']:,} tokens on average. "


PAPER_SECTIONS = (honesty, shards, mixes, models, grid)
