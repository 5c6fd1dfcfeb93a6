"""What came of the turns: medians, tokens per second, ratios to ours, and our share of the machine's limit."""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import Any

from peers.limit import Limit
from peers.processes import Turn
from peers.workloads import Workload

OURS = "ours"
Row = dict[str, Any]


def summary_of(workload: Workload, limit: Limit, turns: dict[str, tuple[Workload, list[Turn]]]) -> Row:
    """One workload's figures. An engine may have run its first rows only; its rate is that of what it ran."""
    engines = {name: _engine(part, of_engine) for name, (part, of_engine) in turns.items()}
    ours = engines[OURS]
    for engine in engines.values():
        engine["ours_is_faster_by"] = ours["tokens_per_s"] / engine["tokens_per_s"]
    return {
        "workload": workload.name,
        "num_rows": len(workload.prompts),
        "num_tokens": workload.num_tokens,
        "limit": asdict(limit) | {"seconds": limit.seconds},
        "share_of_limit": limit.seconds / ours["seconds"],
        "engines": engines,
    }


def _engine(workload: Workload, turns: list[Turn]) -> Row:
    seconds = median(turn.seconds for turn in turns)
    return {
        "num_rows": len(workload.prompts),
        "seconds": seconds,
        "cpu_s": median(turn.cpu_s for turn in turns),
        "tokens_per_s": workload.num_tokens / seconds,
        "turns": [asdict(turn) for turn in turns],
    }


def print_summary(summary: Row) -> None:
    limit = summary["limit"]
    print(f"\n{summary['workload']}: {summary['num_rows']} rows, {summary['num_tokens']:,} tokens")
    print(f"  {'':14s}{'rows':>6s}{'turns':>7s}{'seconds':>10s}{'CPU s':>9s}{'tokens/s':>10s}   ours is faster by")
    for name, engine in summary["engines"].items():
        print(
            f"  {name:14s}{engine['num_rows']:6d}{len(engine['turns']):7d}{engine['seconds']:10.2f}{engine['cpu_s']:9.1f}"
            f"{engine['tokens_per_s']:10,.0f}{engine['ours_is_faster_by']:10.2f}"
        )
    print(
        f"  the machine's limit: {limit['seconds']:.2f} s (layers {limit['layers_s']:.2f}, lm_head {limit['lm_head_s']:.2f}, "
        f"attention {limit['attention_s']:.2f}, KV reads {limit['kv_reads_s']:.2f}); we reach {summary['share_of_limit']:.0%}"
    )
