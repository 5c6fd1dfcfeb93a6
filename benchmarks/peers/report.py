"""What came of the turns: medians, tokens per second, ratios to ours on the same rows, and where our own time went."""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import Any

from peers.limit import Limit, MachineRates
from peers.ours import OwnRun
from peers.processes import Turn
from peers.workloads import Workload

from blendserve_core.perf.model_spec import ModelSpec

OURS = "ours"
Row = dict[str, Any]
Turns = dict[str, list[Turn]]
"""By engine, ours among them; all on the same rows."""


def summary_of(comparisons: list[tuple[Workload, Turns]], limit: Limit, rates: MachineRates) -> Row:
    """One workload's figures. The first comparison is on all of its rows, others are on its first ones."""
    whole, turns = comparisons[0]
    engines = [_engine(name, part, of_engine) for part, by_engine in comparisons for name, of_engine in by_engine.items()]
    own_rates = {engine["num_rows"]: engine["tokens_per_s"] for engine in engines if engine["engine"] == OURS}
    for engine in engines:
        engine["ours_is_faster_by"] = own_rates[engine["num_rows"]] / engine["tokens_per_s"]
        engine["ours_on_all_rows_is_faster_by"] = own_rates[len(whole.prompts)] / engine["tokens_per_s"]
    return {
        "workload": whole.name,
        "num_rows": len(whole.prompts),
        "num_tokens": whole.num_tokens,
        "rates": asdict(rates),
        "limit": asdict(limit) | {"seconds": limit.seconds},
        "share_of_limit": limit.seconds / median(turn.seconds for turn in turns[OURS]),
        "engines": engines,
    }


def _engine(name: str, workload: Workload, turns: list[Turn]) -> Row:
    seconds = median(turn.seconds for turn in turns)
    return {
        "engine": name,
        "num_rows": len(workload.prompts),
        "seconds": seconds,
        "cpu_s": median(turn.cpu_s for turn in turns),
        "tokens_per_s": workload.num_tokens / seconds,
        "turns": [asdict(turn) for turn in turns],
    }


def account_of(run: OwnRun, model: ModelSpec, num_threads: int) -> Row:
    """Of a profiled run of our engine: seconds on the clock by kind, seconds that threads were idle, memory, and start."""
    manifest, mib = run.manifest, 2**20
    model_bytes, pool_bytes = 2 * model.num_stored_parameters, manifest.kv_cache_tokens * model.kv_bytes_per_token
    return {
        "split_s": run.split,
        "idle_threads_s": num_threads * manifest.generate_s - manifest.generate_cpu_s,
        "num_threads": num_threads,
        "generate_s": manifest.generate_s,
        "start_s": manifest.engine_start_s,
        "num_steps": manifest.num_steps,
        "max_step_tokens": manifest.max_step_tokens,
        "max_sequences": manifest.max_sequences,
        "peak_mib": manifest.peak_memory_bytes / mib,
        "model_mib": model_bytes / mib,
        "kv_pool_mib": pool_bytes / mib,
    }


def print_summary(summary: Row) -> None:
    limit = summary["limit"]
    print(f"\n{summary['workload']}: {summary['num_rows']} rows, {summary['num_tokens']:,} tokens")
    print(
        f"  {'':14s}{'rows':>6s}{'turns':>7s}{'seconds':>10s}{'CPU s':>9s}{'tokens/s':>10s}   ours is faster by, on all rows by"
    )
    for engine in summary["engines"]:
        print(
            f"  {engine['engine']:14s}{engine['num_rows']:6d}{len(engine['turns']):7d}{engine['seconds']:10.2f}"
            f"{engine['cpu_s']:9.1f}{engine['tokens_per_s']:10,.0f}{engine['ours_is_faster_by']:10.2f}"
            f"{engine['ours_on_all_rows_is_faster_by']:19.2f}"
        )
    print(
        f"  the machine's limit: {limit['seconds']:.2f} s (layers {limit['layers_s']:.2f}, lm_head {limit['lm_head_s']:.2f}, "
        f"attention {limit['attention_s']:.2f}, KV reads {limit['kv_reads_s']:.2f}); we reach {summary['share_of_limit']:.0%}"
    )
    _print_account(summary["ours"])


def _print_account(account: Row) -> None:
    total_s = sum(account["split_s"].values())
    split = ", ".join(f"{kind} {seconds / total_s:.1%}" for kind, seconds in account["split_s"].items())
    idle = account["idle_threads_s"] / (account["num_threads"] * account["generate_s"])
    print(f"  ours, profiled: {account['generate_s']:.2f} s, of them {split}; threads idle {idle:.0%} of the time")
    print(
        f"  ours: start {account['start_s']:.1f} s; {account['num_steps']} steps of up to {account['max_step_tokens']} tokens "
        f"and {account['max_sequences']} sequences"
    )
    print(
        f"  ours: peak {account['peak_mib']:.0f} MiB, with a model of {account['model_mib']:.0f} and a KV pool of "
        f"{account['kv_pool_mib']:.0f}"
    )
