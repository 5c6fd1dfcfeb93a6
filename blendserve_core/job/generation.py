"""Generate: one engine process per shard, supervised from here; it writes finished rows as it goes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from blendserve_core.job.interrupt import Interrupted, until_interrupted
from blendserve_core.job.job import Job
from blendserve_core.job.restarts import run_to_the_end
from blendserve_core.shard.folder import SPEC_FILE
from schemas.manifest import EngineManifest, Progress
from schemas.parameters import PolicyName
from schemas.shard import EngineSpec

OnProgress = Callable[[Progress], None]


def generate_shard(job: Job, rank: int, on_progress: OnProgress | None = None) -> EngineManifest:
    """Generate what is left of one shard.

    Raises EngineError if no engine can finish it, and Interrupted if the job was told to stop.
    """
    workspace, parameters = job.workspace, job.parameters
    return run_engine_once(
        job,
        rank,
        workspace.plan,
        workspace.shard(rank),
        on_progress,
        policy=parameters.policy,
        num_engines=parameters.shards,
        profile=workspace.profile(rank) if parameters.profile else None,
    )


def generate_all(job: Job, num_shards: int) -> None:
    """Run the shards side by side, one thread each; one that fails does not stop the others."""
    with ThreadPoolExecutor(num_shards) as threads:
        futures = [threads.submit(generate_shard, job, rank) for rank in range(num_shards)]
        wait(futures)
    for future in futures:
        future.result()


def run_engine_once(
    job: Job,
    rank: int,
    plan_folder: Path,
    output_folder: Path,
    on_progress: OnProgress | None,
    *,
    policy: PolicyName,
    stop_at_finished: int | None = None,
    num_engines: int = 1,
    profile: Path | None = None,
) -> EngineManifest:
    """Run the engine that writes into ``output_folder``, unless it did its work in an earlier run."""
    if (earlier := _finished_run(output_folder)) is not None:
        return earlier
    spec = EngineSpec(
        rank=rank,
        staged_folder=str(job.workspace.staged),
        plan_folder=str(plan_folder),
        output_folder=str(output_folder),
        # Its own folder may not be there yet, but will have finished rows should the engine have to be started again.
        done_folders=sorted({str(folder) for folder in [*job.workspace.engine_folders, output_folder]}),
        model_folder=str(job.model_folder),
        policy=policy,
        dtype=job.parameters.dtype,
        seed=job.parameters.sampling.seed,
        engine=job.parameters.engine,
        stop_at_finished=stop_at_finished,
        num_engines=num_engines,
        profile=None if profile is None else str(profile),
    )
    manifest = run_to_the_end(spec, until_interrupted(job, on_progress))
    if manifest.interrupted:
        raise Interrupted(f"the engine in {output_folder} was told to stop; started again, the job goes on from there")
    return manifest


def _finished_run(folder: Path) -> EngineManifest | None:
    """What the engine did that came to the end of this folder's work; one that ran suspects only has not."""
    manifest, spec = EngineManifest.read_if_whole(folder / "manifest.json"), EngineSpec.read_if_whole(folder / SPEC_FILE)
    if manifest is None or manifest.interrupted or spec is None or spec.suspects is not None:
        return None
    return manifest
