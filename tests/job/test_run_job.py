"""The whole job as a notebook calls it, on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendserve_core.job.job import Job, JobFailed
from blendserve_core.job.prepare import prepare
from blendserve_core.job.run import run_job
from schemas.manifest import EngineManifest, Manifest
from schemas.parameters import EngineOptions, JobParameters, SamplingDefaults

ENGINE = EngineOptions(kv_cache_tokens=2048, max_sequences=8, threads=1)


@pytest.fixture
def parameters(requests_file: Path, tiny_model_folder: Path, tmp_path: Path) -> JobParameters:
    return JobParameters(
        requests=str(requests_file),
        output=str(tmp_path / "out"),
        model=str(tiny_model_folder),
        sampling=SamplingDefaults(max_tokens=6),
        engine=ENGINE,
    )


def with_changes(parameters: JobParameters, **changes: object) -> JobParameters:
    return JobParameters.model_validate(parameters.model_dump() | changes)


def test_a_job_gives_one_row_per_request_in_input_order(parameters: JobParameters) -> None:
    manifest = run_job(parameters)
    given = pq.read_table(parameters.requests)
    published = pq.read_table(manifest.generations)
    assert published.select(given.column_names).equals(given)
    assert published["request_id"].to_pylist() == [str(row) for row in range(given.num_rows)]
    assert set(published["finish_reason"].to_pylist()) <= {"stop", "length"}
    assert manifest.num_rows == manifest.num_requests == given.num_rows
    assert manifest.num_output_tokens == sum(published["num_output_tokens"].to_pylist())


def test_the_throughput_is_all_tokens_by_the_engines_time(parameters: JobParameters) -> None:
    manifest = run_job(parameters)
    num_tokens = manifest.num_prompt_tokens + manifest.num_output_tokens
    assert manifest.tokens_per_s == pytest.approx(num_tokens / manifest.generate_s)
    assert manifest.generate_s >= sum(run.generate_s for run in engine_manifests(parameters))


def engine_manifests(parameters: JobParameters) -> list[EngineManifest]:
    folders = prepare(parameters).workspace.engine_folders
    return [EngineManifest.read(folder / "manifest.json") for folder in folders if (folder / "manifest.json").exists()]


def test_the_report_says_what_ran_and_where_the_files_are(parameters: JobParameters) -> None:
    manifest = run_job(parameters)
    report = Path(manifest.report).read_text(encoding="utf-8")
    for expected in (parameters.requests, parameters.model, manifest.generations, f"{manifest.num_output_tokens:,}"):
        assert expected in report


def test_a_finished_job_is_not_run_again(parameters: JobParameters) -> None:
    manifest = run_job(parameters)
    written = Path(manifest.generations).stat().st_mtime_ns
    assert run_job(parameters) == manifest
    assert Path(manifest.generations).stat().st_mtime_ns == written


def test_two_shards_are_two_engines_that_share_the_rows(parameters: JobParameters) -> None:
    parameters = with_changes(parameters, shards=2, sample_fraction=0.0)
    manifest = run_job(parameters)
    engines = engine_manifests(parameters)
    assert manifest.num_shards == len(engines) == 2
    assert sum(engine.num_sequences for engine in engines) == manifest.num_rows
    assert all(engine.num_sequences > 0 for engine in engines)


def test_the_number_of_shards_changes_no_row(parameters: JobParameters, tmp_path: Path) -> None:
    parameters = with_changes(parameters, dtype="float32")
    one = pq.read_table(run_job(parameters).generations)
    two = pq.read_table(run_job(with_changes(parameters, shards=2, output=str(tmp_path / "two"))).generations)
    assert one["output_token_ids"].equals(two["output_token_ids"])


def test_a_job_goes_on_with_other_shards_and_policy_without_redoing_a_row(parameters: JobParameters) -> None:
    run_job(parameters)
    job = prepare(parameters)
    before = part_rows(job)
    job.workspace.manifest.unlink()
    manifest = run_job(with_changes(parameters, shards=2, policy="first-come"))
    assert part_rows(job) == before
    assert (manifest.num_shards, manifest.policy) == (2, "first-come")


def part_rows(job: Job) -> list[tuple[int, int]]:
    parts = [part for folder in job.workspace.engine_folders for part in folder.glob("*.parquet")]
    rows = [row for part in parts for row in pq.read_table(part, columns=["row", "sample_index"]).to_pylist()]
    return sorted((row["row"], row["sample_index"]) for row in rows)


@pytest.fixture
def requests_with_bad_rows(tmp_path: Path) -> Path:
    prompts = ["fine", None, "also fine", "", "x" * 5000, "fine too"]
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table({"prompt": prompts}), path)
    return path


def test_bad_rows_become_errors_and_leave_the_others_alone(parameters: JobParameters, requests_with_bad_rows: Path) -> None:
    manifest = run_job(with_changes(parameters, requests=str(requests_with_bad_rows), max_error_rate=0.5))
    published = pq.read_table(manifest.generations).to_pylist()
    assert [row["finish_reason"] == "error" for row in published] == [False, True, False, True, True, False]
    assert all((row["error"] is not None) == (row["finish_reason"] == "error") for row in published)
    assert manifest.num_errors == 3


def test_too_many_bad_rows_fail_the_job_and_everything_is_kept(parameters: JobParameters, requests_with_bad_rows: Path) -> None:
    parameters = with_changes(parameters, requests=str(requests_with_bad_rows), max_error_rate=0.4)
    with pytest.raises(JobFailed, match="3 of 6 rows"):
        run_job(parameters)
    manifest = Manifest.read(Path(parameters.output) / "manifest.json")
    assert pq.read_table(manifest.generations).num_rows == 6


def test_requests_that_are_not_there_end_the_job_before_it_begins(parameters: JobParameters, tmp_path: Path) -> None:
    with pytest.raises((ValueError, OSError), match="nothing-here"):
        run_job(with_changes(parameters, requests=str(tmp_path / "nothing-here.parquet")))


def test_every_sample_of_a_row_has_a_row_of_its_own(parameters: JobParameters) -> None:
    sampling = SamplingDefaults(max_tokens=4, n=3, temperature=1.0)
    manifest = run_job(with_changes(parameters, sampling=sampling.model_dump()))
    published = pq.read_table(manifest.generations)
    assert published["sample_index"].to_pylist() == [0, 1, 2] * manifest.num_requests
