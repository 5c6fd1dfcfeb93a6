"""Runs over a dataset that grows and changes: what is generated, what is kept, and what a crash in between leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import Runs

from blendserve_core.data.publish import digests_path
from blendserve_core.job.prepare import start_afresh
from blendserve_core.job.publishing import publish_generations
from schemas.manifest import Manifest


def write_parquet(path: Path, prompts: list[str]) -> None:
    pq.write_table(pa.table({"prompt": prompts}), path)


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    path = tmp_path / "requests.parquet"
    write_parquet(path, ["a", "b", "c"])
    return path


@pytest.fixture
def runs(tiny_model_folder: Path, requests: Path, tmp_path: Path) -> Runs:
    return Runs(tiny_model_folder, requests, tmp_path / "out")


def test_a_grown_file_costs_its_new_rows_and_gives_the_union(runs: Runs, requests: Path) -> None:
    runs.run("one")
    write_parquet(requests, ["new", "a", "c", "b changed"])
    manifest = runs.run("two")
    assert runs.texts() == ["two", "one", "one", "two"]
    assert (manifest.num_rows, manifest.num_reused_rows, manifest.num_computed_output_tokens) == (4, 2, 4)
    assert manifest.num_output_tokens == 8


def test_a_grown_folder_of_json_lines_does_the_same(tiny_model_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    folder.mkdir()
    (folder / "2026-11-29.jsonl").write_text(json.dumps({"prompt": "a"}) + "\n")
    runs = Runs(tiny_model_folder, folder, tmp_path / "out")
    runs.run("one")
    (folder / "2026-11-30.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in ("b", "a")))
    assert runs.run("two").num_reused_rows == 1
    assert runs.texts() == ["one", "two", "one"]


def test_other_limits_and_columns_are_seen_row_by_row(runs: Runs, requests: Path) -> None:
    runs.run("one", limit=2)
    assert runs.run("two").num_reused_rows == 2
    pq.write_table(pa.table({"question": ["c", "a"], "max_tokens": [9, None]}), requests)
    runs.run("three", columns={"prompt": "question"})
    assert runs.texts() == ["three", "one"]


def test_with_another_number_format_all_is_generated_anew(runs: Runs) -> None:
    runs.run("one")
    runs.run("two", dtype="float32")
    assert runs.texts() == ["two"] * 3


def test_with_other_code_all_is_generated_anew(runs: Runs, requests: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.run("one")
    monkeypatch.setattr("blendserve_core.data.fingerprint.code_digest", lambda: "another version")
    runs.run("two")
    assert runs.texts() == ["two"] * 3


def test_afresh_means_that_nothing_is_taken_over(runs: Runs, requests: Path) -> None:
    runs.run("one")
    write_parquet(requests, ["a", "d"])
    runs.finish(start_afresh(runs.prepare()), "two")
    assert runs.texts() == ["two", "two"]


def test_digests_that_cannot_be_read_are_as_good_as_none(runs: Runs, requests: Path, tmp_path: Path) -> None:
    runs.run("one")
    digests_path(tmp_path / "out" / "generations.parquet").write_bytes(b"half")
    write_parquet(requests, ["a", "d"])
    runs.run("two")
    assert runs.texts() == ["two", "two"]


def test_rows_are_kept_through_a_stop_between_staging_and_the_end(runs: Runs, requests: Path, tmp_path: Path) -> None:
    """What a run takes over lies in its own folder from staging on, whatever becomes of the earlier output."""
    runs.run("one")
    write_parquet(requests, ["a", "d"])
    runs.generate(runs.prepare(), "two")
    (tmp_path / "out" / "generations.parquet").unlink()
    runs.finish(runs.prepare(), "too late")
    assert runs.texts() == ["one", "two"]


def test_rows_staged_anew_after_a_crash_leave_no_trace_of_the_numbers_they_had(runs: Runs, requests: Path) -> None:
    """Staged when nothing could be taken over, damaged, and staged again when rows could: the plan is another one."""
    write_parquet(requests, ["a", "b", "c", "d"])
    job = runs.prepare()
    runs.generate(job, "mine")
    write_parquet(requests, ["a"])
    runs.run("other")
    write_parquet(requests, ["a", "b", "c", "d"])
    (job.workspace.staged / "manifest.json").unlink()
    manifest = runs.run("again")
    assert manifest.num_reused_rows == 1
    assert runs.texts() == ["other", "mine", "mine", "mine"]


def test_a_job_that_ended_between_generations_and_manifest_is_not_taken_for_finished(runs: Runs, requests: Path) -> None:
    runs.run("one")
    write_parquet(requests, ["d"])
    job = runs.prepare()
    runs.generate(job, "two")
    publish_generations(job)
    write_parquet(requests, ["a", "b", "c"])
    assert runs.run("three").num_rows == 3
    assert runs.texts() == ["one"] * 3


def test_retrying_redoes_the_errors_and_nothing_else(runs: Runs) -> None:
    assert runs.run("one", failing=(1,)).errors == {"engine_error": 1}
    manifest = runs.run("two", retry_failed=True)
    assert runs.texts() == ["one", "two", "one"]
    assert (manifest.num_errors, manifest.num_reused_rows, manifest.num_retries) == (0, 2, 1)


def test_a_retried_job_is_finished_with_and_without_the_flag(runs: Runs) -> None:
    runs.run("one", failing=(1,))
    manifest = runs.run("two", retry_failed=True)
    assert runs.run("three", retry_failed=True) == runs.run("three") == manifest
    assert runs.texts() == ["one", "two", "one"]


def test_what_fails_again_can_be_retried_again(runs: Runs) -> None:
    runs.run("one", failing=(0, 1))
    runs.run("two", failing=(0,), retry_failed=True)
    manifest = runs.run("three", retry_failed=True)
    assert runs.texts() == ["three", "two", "one"]
    assert manifest.num_retries == 2


def test_a_retry_that_was_stopped_goes_on(runs: Runs) -> None:
    runs.run("one", failing=(1,))
    runs.generate(runs.prepare(retry_failed=True), "two")
    runs.finish(runs.prepare(retry_failed=True), "too late")
    assert runs.texts() == ["one", "two", "one"]


def test_a_retry_that_ended_while_it_published_goes_on(runs: Runs) -> None:
    runs.run("one", failing=(1,))
    job = runs.prepare(retry_failed=True)
    runs.generate(job, "two")
    publish_generations(job)
    manifest = runs.run("three", retry_failed=True)
    assert runs.texts() == ["one", "two", "one"]
    assert (manifest.num_retries, manifest.num_errors) == (1, 0)


def test_a_retry_that_lost_the_manifest_before_it_published_goes_on(runs: Runs) -> None:
    runs.run("one", failing=(1,))
    job = runs.prepare(retry_failed=True)
    runs.generate(job, "two")
    job.workspace.manifest.unlink()
    runs.run("three", retry_failed=True)
    assert runs.texts() == ["one", "two", "one"]


def test_a_grown_dataset_keeps_errors_or_retries_them_as_asked(runs: Runs, requests: Path) -> None:
    runs.run("one", failing=(1,))
    write_parquet(requests, ["a", "b", "d"])
    runs.run("two")
    assert runs.texts() == ["one", None, "two"]
    write_parquet(requests, ["a", "b", "d", "e"])
    runs.run("three", retry_failed=True)
    assert runs.texts() == ["one", "three", "two", "three"]


def test_afresh_after_a_retry_forgets_both_runs(runs: Runs) -> None:
    runs.run("one", failing=(1,))
    runs.run("two", retry_failed=True)
    runs.finish(start_afresh(runs.prepare()), "three")
    assert runs.texts() == ["three"] * 3
    assert Manifest.read(runs.prepare().workspace.manifest).num_retries == 0
