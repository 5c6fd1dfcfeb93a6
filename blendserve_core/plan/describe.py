"""A plan as a person wants it before taking a GPU."""

from __future__ import annotations

import numpy as np

from blendserve_core.plan.plan import Plan

BAR_WIDTH = 40
MAX_SHARDS_LISTED = 16


def describe(plan: Plan) -> str:
    """Requests, tokens, sharing, a histogram of density, shards and their balance, seconds and GPU-hours, as text.

    GPU-hours count one device per shard; multiply by the degree of tensor parallelism.
    """
    blocks = (_totals(plan), _times(plan), _histogram(plan), _shards(plan))
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _totals(plan: Plan) -> list[str]:
    s = plan.summary
    return [
        f"policy          {s.policy}",
        f"requests        {s.num_requests:,} in {sum(len(shard.unit_indptr) - 1 for shard in plan.shards):,} units",
        f"prompt tokens   {s.num_prompt_tokens:,}, of which {s.unique_tokens:,} unique",
        f"output tokens   {s.est_output_tokens:,} expected",
        f"sharing         {s.sharing_ratio:.1%} of the prompt tokens; at best {s.max_sharing_ratio:.1%}",
        f"density         {s.density:.2f} ({'compute' if s.density >= 1 else 'memory'}-bound as a whole)",
    ]


def _times(plan: Plan) -> list[str]:
    s = plan.summary
    busy_s = sum(shard.predicted_s for shard in plan.shards)
    share = s.optimum_s / s.predicted_s if s.predicted_s else 1.0
    return [
        f"predicted       {duration(s.predicted_s)} on {len(plan.shards)} shard(s), {share:.0%} of the practical optimum",
        f"GPU-hours       {s.predicted_s * len(plan.shards) / 3600:.2f}, of which {busy_s / 3600:.2f} busy",
        f"hardware        {s.hardware}",
        f"planning took   {s.tree_s:.1f} s for the tree, {s.plan_s:.1f} s for the plan",
    ]


def _histogram(plan: Plan) -> list[str]:
    rows = plan.summary.density_histogram
    most = max((count for _, count in rows), default=0)
    lines = [f"{low:9.3g} - {2 * low:<8.3g} {_bar(count / most)} {count:,}" for low, count in reversed(rows)]
    return ["compute density of requests, prefixes shared as planned", *lines] if lines else []


def _bar(share: float) -> str:
    return ("#" * max(round(share * BAR_WIDTH), 1 if share > 0 else 0)).ljust(BAR_WIDTH)


def _shards(plan: Plan) -> list[str]:
    shards = plan.shards
    seconds = np.array([shard.predicted_s for shard in shards])
    lines = ["shard   requests   compute     memory  predicted"]
    lines += [
        f"{s.rank:5d} {s.num_requests:10,} {duration(s.tc_s):>9} {duration(s.tm_s):>10} {duration(s.predicted_s):>10}"
        for s in shards[:MAX_SHARDS_LISTED]
    ]
    if len(shards) > MAX_SHARDS_LISTED:
        lines.append(f"  ... and {len(shards) - MAX_SHARDS_LISTED} more")
    if len(shards) > 1 and seconds.mean() > 0:
        longer = seconds.max() / seconds.mean() - 1
        lines.append(f"the slowest shard takes {longer:.1%} longer than the mean (cut: {plan.summary.partition})")
    return lines


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.1f} min" if minutes < 60 else f"{hours:.1f} h"
