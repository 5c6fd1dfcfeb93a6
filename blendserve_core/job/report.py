"""The job's manifest, for programs, and its report, for people."""

from __future__ import annotations

import platform
from importlib.metadata import version

from blendserve_core.data.durable import written_whole
from blendserve_core.data.publish import digests_path, run_of
from blendserve_core.job.attempts import engine_runs
from blendserve_core.job.bounds import time_bounds
from blendserve_core.job.job import Job, JobFailed
from blendserve_core.job.length_report import actual_lengths, length_error, read_sources
from blendserve_core.job.report_text import report_text
from blendserve_core.job.upload import is_uploaded, upload
from blendserve_core.plan.plan import Plan
from blendserve_core.requests import RequestTable
from schemas.manifest import EngineManifest, Manifest, PublishManifest, StageManifest

VERSIONED = ("blendserve", "torch", "transformers", "pyarrow", "prefect")


def write_report(job: Job) -> Manifest:
    """Sum up what the stages left on disk: first ``report.md``, then ``manifest.json``, which marks the job as finished."""
    plan = Plan.load(job.workspace.plan)
    manifest = _sum_up(job, plan)
    with written_whole(job.workspace.report) as path:
        path.write_text(report_text(job, manifest, plan), encoding="utf-8")
    upload(job, manifest)
    manifest.write(job.workspace.manifest)
    return manifest


def finished_manifest(job: Job) -> Manifest | None:
    """The manifest of an earlier run of this very job, if that came to its end and its generations are still there."""
    workspace = job.workspace
    manifest = Manifest.read_if_whole(workspace.manifest)
    if manifest is None or manifest.run != workspace.run or run_of(workspace.generations) != workspace.run:
        return None
    return manifest if is_uploaded(job) else None


def require_success(job: Job, manifest: Manifest) -> Manifest:
    """Pass the manifest on; raises JobFailed when more rows than ``max_error_rate`` ended in an error."""
    allowed = job.parameters.max_error_rate
    if manifest.num_errors > allowed * manifest.num_rows:
        raise JobFailed(
            f"{manifest.num_errors:,} of {manifest.num_rows:,} rows are errors, more than the {allowed:.1%} that "
            f"max_error_rate allows. Every row is in {manifest.generations}; its column 'error' says what was wrong."
        )
    return manifest


def _sum_up(job: Job, plan: Plan) -> Manifest:
    workspace, parameters = job.workspace, job.parameters
    staged = StageManifest.read(workspace.staged / "manifest.json")
    published = PublishManifest.read(workspace.root / "published.json")
    warm_up = engine_runs(workspace.warm_up)
    shards = [engine_runs(workspace.shard(shard.rank)) for shard in plan.shards]
    generate_s = _generate_s(warm_up) + max(map(_generate_s, shards))
    requests = RequestTable.load(workspace.staged)
    actual = actual_lengths(job, requests)
    error, bounds = length_error(plan, actual), time_bounds(job, plan, requests, actual)
    num_served_tokens = published.num_served_prompt_tokens + published.num_served_output_tokens
    return Manifest(
        run=workspace.run,
        fingerprint=job.fingerprint,
        fingerprint_parts=job.parts,
        reuse_key=job.reuse_key,
        num_retries=job.num_retries,
        plan_digest=plan.digest(),
        model=parameters.model,
        model_revision=parameters.model_revision,
        policy=parameters.policy,
        dtype=parameters.dtype,
        num_shards=len(plan.shards),
        num_requests=staged.num_requests,
        num_rows=published.num_rows,
        outcomes=published.outcomes,
        errors=published.errors,
        num_errors=published.num_errors,
        num_duplicate_rows=published.num_duplicate_rows,
        num_reused_rows=published.num_reused_rows,
        num_prompt_tokens=published.num_prompt_tokens,
        num_cached_tokens=published.num_cached_tokens,
        num_output_tokens=published.num_output_tokens,
        num_served_tokens=num_served_tokens,
        num_computed_prompt_tokens=published.num_served_prompt_tokens - published.num_served_cached_tokens,
        num_computed_output_tokens=published.num_served_output_tokens,
        num_recomputed_tokens=sum(run.num_recomputed_tokens for runs in [warm_up, *shards] for run in runs),
        num_retractions=sum(run.num_retractions for runs in [warm_up, *shards] for run in runs),
        sharing_ratio=plan.summary.sharing_ratio,
        stage_s=staged.stage_s,
        warm_up_s=_start_s(warm_up) + _generate_s(warm_up),
        plan_s=plan.summary.plan_s,
        engine_start_s=_start_s(warm_up) + max(map(_start_s, shards)),
        generate_s=generate_s,
        publish_s=published.publish_s,
        tokens_per_s=num_served_tokens / max(generate_s, 1e-9),
        hardware=bounds.hardware,
        optimum_s=bounds.optimum_s,
        reachable_s=bounds.reachable_s,
        optimum_share=bounds.optimum_s / generate_s if generate_s else None,
        reachable_share=bounds.reachable_s / generate_s if generate_s else None,
        max_step_tokens=max((run.max_step_tokens for runs in shards for run in runs), default=0),
        max_sequences=max((run.max_sequences for runs in shards for run in runs), default=0),
        length_sources=read_sources(workspace.plan),
        est_bias=error.bias if error else None,
        est_mape=error.mape if error else None,
        generations=str(workspace.generations),
        row_digests=str(digests_path(workspace.generations)),
        report=str(workspace.report),
        versions={"python": platform.python_version()} | {name: version(name) for name in VERSIONED},
    )


def _generate_s(runs: list[EngineManifest]) -> float:
    return sum(run.generate_s for run in runs)


def _start_s(runs: list[EngineManifest]) -> float:
    return sum(run.engine_start_s for run in runs)
