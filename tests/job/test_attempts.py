from __future__ import annotations

from pathlib import Path

from blendserve_core.job.attempts import engine_runs, remember_attempt
from schemas.manifest import EngineManifest, Progress


def engine_manifest(generate_s: float, *, interrupted: bool = False) -> EngineManifest:
    counts = {name: 0 for name in EngineManifest.model_fields if name.startswith("num_")}
    times = {"engine_start_s": 1.0, "generate_s": generate_s, "schedule_s": 0.0}
    return EngineManifest.model_validate(counts | times | {"rank": 0, "interrupted": interrupted})


def heartbeat(elapsed_s: float) -> Progress:
    return Progress(
        phase="generate",
        num_finished=3,
        num_total=8,
        num_running=2,
        num_output_tokens=40,
        num_computed_tokens=90,
        elapsed_s=elapsed_s,
        updated_at=0.0,
    )


def test_a_stopped_engine_keeps_its_time_when_another_one_runs_in_its_folder(tmp_path: Path) -> None:
    engine_manifest(4.0, interrupted=True).write(tmp_path / "manifest.json")
    remember_attempt(tmp_path)
    engine_manifest(6.0).write(tmp_path / "manifest.json")
    assert [run.generate_s for run in engine_runs(tmp_path)] == [4.0, 6.0]


def test_a_killed_engine_is_remembered_by_its_last_heartbeat(tmp_path: Path) -> None:
    heartbeat(elapsed_s=2.5).write(tmp_path / "progress.json")
    remember_attempt(tmp_path)
    assert [(run.generate_s, run.num_sequences, run.interrupted) for run in engine_runs(tmp_path)] == [(2.5, 3, True)]


def test_one_engine_is_remembered_once(tmp_path: Path) -> None:
    engine_manifest(4.0, interrupted=True).write(tmp_path / "manifest.json")
    heartbeat(elapsed_s=4.0).write(tmp_path / "progress.json")
    remember_attempt(tmp_path)
    remember_attempt(tmp_path)
    assert len(engine_runs(tmp_path)) == 1


def test_a_folder_in_which_nothing_ran_has_no_runs(tmp_path: Path) -> None:
    remember_attempt(tmp_path / "shard-00000")
    assert engine_runs(tmp_path / "shard-00000") == []
