"""A job that was stopped and started again has run several engines per folder; their times add up."""

from __future__ import annotations

from pathlib import Path

from schemas.manifest import EngineManifest, Progress


def remember_attempt(folder: Path) -> None:
    """Keep what the last engine in this folder did under a number of its own, before another one runs here."""
    manifest, progress = folder / "manifest.json", folder / "progress.json"
    kept = folder / f"attempt-{len(_attempts(folder)):03d}.json"
    if EngineManifest.read_if_whole(manifest) is not None:
        manifest.replace(kept)
    elif (last_heartbeat := Progress.read_if_whole(progress)) is not None:
        _as_manifest(last_heartbeat).write(kept)
    progress.unlink(missing_ok=True)


def engine_runs(folder: Path) -> list[EngineManifest]:
    """What every engine that ran in this folder did, the last one last."""
    paths = [*_attempts(folder), folder / "manifest.json"]
    runs = map(EngineManifest.read_if_whole, paths)
    return [run for run in runs if run is not None]


def _attempts(folder: Path) -> list[Path]:
    return sorted(folder.glob("attempt-*.json"))


def _as_manifest(progress: Progress) -> EngineManifest:
    """An engine that was killed left only its last heartbeat; what that does not tell counts as nothing."""
    return EngineManifest(
        rank=0,
        num_sequences=progress.num_finished,
        num_errors=0,
        num_prompt_tokens=0,
        num_cached_tokens=0,
        num_output_tokens=progress.num_output_tokens,
        num_steps=0,
        num_retractions=0,
        num_recomputed_tokens=0,
        engine_start_s=0.0,
        generate_s=progress.elapsed_s,
        schedule_s=0.0,
        interrupted=True,
    )
