"""The report a person reads: what ran, how fast, what came of it, how good the plan was, where the files are."""

from __future__ import annotations

from blendserve_core.job.job import Job
from blendserve_core.job.length_report import lengths_text
from blendserve_core.plan.plan import Plan
from blendserve_core.trace import read_split
from schemas.manifest import Manifest


def report_text(job: Job, manifest: Manifest, plan: Plan) -> str:
    """Markdown, shown on disk and as the Prefect artifact alike."""
    sections = [
        ("What ran", _what_ran(job, manifest)),
        ("Throughput", _throughput(manifest)),
        ("Outcomes", _outcomes(manifest)),
        ("Time by stage", _times(manifest)),
        *_profiled(job, plan),
        ("Plan and reality", _plan_and_reality(manifest, plan)),
        ("Output lengths", lengths_text(manifest)),
        ("Files", _files(job, manifest)),
    ]
    return "# Batch inference report\n\n" + "\n\n".join(f"## {title}\n\n{text}" for title, text in sections) + "\n"


def _what_ran(job: Job, manifest: Manifest) -> str:
    parameters = job.parameters
    shards = "shard" if manifest.num_shards == 1 else "shards"
    return (
        f"{manifest.num_requests:,} requests from `{parameters.requests}` on `{parameters.model}` ({parameters.dtype}), "
        f"in {manifest.num_shards} {shards}, policy `{manifest.policy}`."
    )


def _throughput(manifest: Manifest) -> str:
    hit_rate = manifest.num_cached_tokens / max(manifest.num_prompt_tokens, 1)
    rows = [
        ("Tokens per second (prompt and output that engines served, by `generate_s`)", f"{manifest.tokens_per_s:,.0f}"),
        ("Share of the practical optimum", _percent(manifest.optimum_share)),
        ("Share of the reachable speed, an upper bound", _percent(manifest.reachable_share)),
        ("Prompt tokens", f"{manifest.num_prompt_tokens:,}"),
        ("of them from the prefix cache", f"{manifest.num_cached_tokens:,} ({hit_rate:.1%})"),
        ("Output tokens", f"{manifest.num_output_tokens:,}"),
        ("Prompt tokens computed for this output", f"{manifest.num_computed_prompt_tokens:,}"),
        ("Output tokens computed for this output", f"{manifest.num_computed_output_tokens:,}"),
        ("Retractions", f"{manifest.num_retractions:,}"),
        ("Most tokens of a step, and sequences", f"{manifest.max_step_tokens:,}, {manifest.max_sequences:,}"),
    ]
    return _table(("", "Value"), rows)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _outcomes(manifest: Manifest) -> str:
    errors = {f"{kind} (error)": count for kind, count in manifest.errors.items()}
    origins = {"copied from an equal row": manifest.num_duplicate_rows, "kept from an earlier run": manifest.num_reused_rows}
    counts = manifest.outcomes | errors | origins
    rows = [(reason, f"{count:,}", f"{count / max(manifest.num_rows, 1):.1%}") for reason, count in counts.items()]
    return _table(("Outcome", "Rows", "Share"), rows)


def _times(manifest: Manifest) -> str:
    rows = [
        ("Stage", manifest.stage_s),
        ("Warm up, engine start included", manifest.warm_up_s),
        ("Plan", manifest.plan_s),
        ("Engine work on requests, warm-up sample included", manifest.generate_s),
        ("Engine start, warm-up included", manifest.engine_start_s),
        ("Publish", manifest.publish_s),
    ]
    return _table(("Stage", "Seconds"), [(name, f"{seconds:,.2f}") for name, seconds in rows])


def _profiled(job: Job, plan: Plan) -> list[tuple[str, str]]:
    """Where the steps of the last engine of each shard spent their time, if the job was to look; open traces in Perfetto."""
    paths = [path for shard in plan.shards if (path := job.workspace.profile(shard.rank)).exists()]
    splits = {path.name: read_split(path) for path in paths}
    rows = [
        (f"`{name}`", kind, f"{seconds:,.2f}", f"{seconds / max(sum(split.values()), 1e-9):.1%}")
        for name, split in splits.items()
        for kind, seconds in split.items()
    ]
    return [("Engine steps", _table(("Trace", "Spent in", "Seconds", "Share"), rows))] if rows else []


def _plan_and_reality(manifest: Manifest, plan: Plan) -> str:
    summary = plan.summary
    hit_rate = manifest.num_cached_tokens / max(manifest.num_prompt_tokens, 1)
    rows = [
        ("Output tokens to generate", f"{summary.est_output_tokens:,}", f"{manifest.num_computed_output_tokens:,}"),
        ("Prompt tokens shared", f"{summary.sharing_ratio:.1%}", f"{hit_rate:.1%}"),
        (f"Seconds, on {summary.hardware}", f"{summary.predicted_s:,.1f}", f"{manifest.generate_s:,.1f}"),
    ]
    return _table(("", "Planned", "Observed"), rows)


def _files(job: Job, manifest: Manifest) -> str:
    paths = (manifest.generations, job.workspace.manifest, manifest.report, job.workspace.root)
    names = ("Generations", "Manifest", "This report", "Working files (safe to delete; needed to go on after a stop)")
    return "\n".join(f"- {name}: `{path}`" for name, path in zip(names, paths, strict=True))


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
