"""The whole job as a notebook calls it, on a tiny model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_requests import write_requests

from blendserve_core.job.job import JobFailed
from blendserve_core.job.prepare import prepare
from blendserve_core.job.remembered_lengths import remember_lengths
from blendserve_core.job.run import run_job
from blendserve_core.plan.plan import Plan
from blendserve_core.trace import read_split
from blendserve_core.workspace import Workspace
from schemas.manifest import EngineManifest, LengthSources, Manifest
from schemas.parameters import EngineOptions, JobParameters, SamplingDefaults


@pytest.fixture
def parameters(requests_file: Path, tiny_model_folder: Path, tmp_path: Path) -> JobParameters:
    """A job without a warm-up, so that it starts one engine per shard and no more."""
    return tiny_job(requests_file, tiny_model_folder, tmp_path / "out").model_copy(update={"sample_fraction": 0.0})


def tiny_job(requests: Path, model: Path, output: Path) -> JobParameters:
    return JobParameters(
        requests=str(requests),
        output=str(output),
        model=str(model),
        dtype="float32",
        sampling=SamplingDefaults(max_tokens=6),
        engine=EngineOptions(kv_cache_tokens=2048, max_sequences=8, threads=1),
    )


def with_changes(parameters: JobParameters, **changes: object) -> JobParameters:
    return JobParameters.model_validate(parameters.model_dump() | changes)


@pytest.fixture(scope="module")
def finished(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[JobParameters, Manifest]:
    """A job with a warm-up and one shard, done once for all tests that only look at what it left."""
    folder = tmp_path_factory.mktemp("finished")
    parameters = tiny_job(write_requests(folder / "requests.parquet"), tiny_model_folder, folder / "out")
    parameters = with_changes(parameters, profile=True)
    return parameters, run_job(parameters)


def engine_folders(manifest: Manifest) -> list[Path]:
    return Workspace(Path(manifest.report).parent, manifest.fingerprint).engine_folders


def engine_manifests(manifest: Manifest) -> list[EngineManifest]:
    paths = [folder / "manifest.json" for folder in engine_folders(manifest)]
    return [EngineManifest.read(path) for path in paths if path.exists()]


def part_rows(manifest: Manifest) -> list[tuple[int, int]]:
    parts = [part for folder in engine_folders(manifest) for part in folder.glob("part-*.parquet")]
    rows = [row for part in parts for row in pq.read_table(part, columns=["row", "sample_index"]).to_pylist()]
    return sorted((row["row"], row["sample_index"]) for row in rows)


def test_a_job_gives_one_row_per_request_in_input_order(finished: tuple[JobParameters, Manifest]) -> None:
    parameters, manifest = finished
    given = pq.read_table(parameters.requests)
    published = pq.read_table(manifest.generations)
    assert published.select(given.column_names).equals(given)
    assert published["request_id"].to_pylist() == [str(row) for row in range(given.num_rows)]
    assert set(published["finish_reason"].to_pylist()) <= {"stop", "length"}
    assert manifest.num_rows == manifest.num_requests == given.num_rows
    assert manifest.num_output_tokens == sum(published["num_output_tokens"].to_pylist())


def test_the_throughput_is_all_tokens_by_the_time_of_all_engines(finished: tuple[JobParameters, Manifest]) -> None:
    _, manifest = finished
    warm_up, shard = engine_manifests(manifest)
    assert manifest.generate_s == warm_up.generate_s + shard.generate_s
    assert manifest.engine_start_s == warm_up.engine_start_s + shard.engine_start_s
    num_tokens = manifest.num_prompt_tokens + manifest.num_output_tokens
    assert manifest.tokens_per_s == pytest.approx(num_tokens / manifest.generate_s)


def test_the_warm_up_is_a_part_of_the_job_and_no_row_is_done_twice(finished: tuple[JobParameters, Manifest]) -> None:
    _, manifest = finished
    warm_up, shard = engine_manifests(manifest)
    assert 0 < warm_up.num_sequences < manifest.num_rows
    assert warm_up.num_sequences + shard.num_sequences == manifest.num_rows
    assert part_rows(manifest) == [(row, 0) for row in range(manifest.num_rows)]


def test_the_manifest_says_how_wide_steps_were(finished: tuple[JobParameters, Manifest]) -> None:
    _, manifest = finished
    _, shard = engine_manifests(manifest)
    assert manifest.max_step_tokens == shard.max_step_tokens >= manifest.max_sequences == shard.max_sequences > 0


def test_the_report_says_what_ran_and_where_the_files_are(finished: tuple[JobParameters, Manifest]) -> None:
    parameters, manifest = finished
    report = Path(manifest.report).read_text(encoding="utf-8")
    for expected in (parameters.requests, parameters.model, manifest.generations, f"{manifest.num_output_tokens:,}"):
        assert expected in report


def test_a_profile_accounts_for_all_the_time_between_an_engines_first_and_last_step(
    finished: tuple[JobParameters, Manifest],
) -> None:
    parameters, manifest = finished
    split = read_split(Path(parameters.output) / "profile-shard-00000.json")
    assert {"gemm", "attention", "elementwise", "sampling", "scheduling", "rows", "layout", "rest"} <= split.keys()
    _, shard = engine_manifests(manifest)
    assert split["scheduling"] < sum(split.values()) < shard.engine_start_s + shard.generate_s
    assert "| `profile-shard-00000.json` | gemm |" in Path(manifest.report).read_text(encoding="utf-8")


def test_the_warm_up_measures_the_machine_that_the_plan_is_for(finished: tuple[JobParameters, Manifest]) -> None:
    _, manifest = finished
    plan = Workspace(Path(manifest.report).parent, manifest.fingerprint).plan
    assert Plan.load(plan).summary.hardware == "cpu (measured)"
    assert "Seconds, on cpu (measured)" in Path(manifest.report).read_text(encoding="utf-8")


def test_the_report_says_how_good_the_estimates_of_lengths_were(finished: tuple[JobParameters, Manifest]) -> None:
    _, manifest = finished
    warm_up, _ = engine_manifests(manifest)
    assert manifest.length_sources is not None
    assert 0 < warm_up.num_sequences <= manifest.length_sources.num_seen
    assert (manifest.length_sources.num_stated, manifest.length_sources.num_remembered) == (0, 0)
    lengths = pq.read_table(manifest.generations)["num_output_tokens"].to_numpy()
    estimated = Plan.load(Workspace(Path(manifest.report).parent, manifest.fingerprint).plan).estimates.mean_tokens
    assert manifest.est_bias == pytest.approx(estimated.sum() / lengths.sum() - 1)
    assert manifest.est_mape == pytest.approx((abs(estimated - lengths) / lengths).mean())
    report = Path(manifest.report).read_text(encoding="utf-8")
    assert f"{manifest.length_sources.num_seen} outputs this job had when it planned" in report
    assert f"Bias {manifest.est_bias:+.1%}" in report


def test_a_job_with_another_seed_needs_no_warm_up(
    finished: tuple[JobParameters, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters, before = finished
    monkeypatch.setattr(
        "blendserve_core.job.remembered_lengths.lengths_path", lambda job: tmp_path / f"{job.lengths_key}.parquet"
    )
    remember_lengths(prepare(parameters))
    sampling = parameters.sampling.model_copy(update={"seed": 1})
    manifest = run_job(with_changes(parameters, output=str(tmp_path / "again"), sampling=sampling.model_dump()))
    assert len(engine_manifests(manifest)) == 1
    assert manifest.length_sources == LengthSources(num_stated=0, num_seen=0, num_remembered=before.num_rows)
    assert f"{before.num_rows} outputs of an earlier job" in Path(manifest.report).read_text(encoding="utf-8")


def test_a_finished_job_is_not_run_again(finished: tuple[JobParameters, Manifest]) -> None:
    parameters, manifest = finished
    written = Path(manifest.generations).stat().st_mtime_ns
    assert run_job(parameters) == manifest
    assert Path(manifest.generations).stat().st_mtime_ns == written


def test_two_shards_are_two_engines_whose_rows_are_those_of_one(
    finished: tuple[JobParameters, Manifest], tmp_path: Path
) -> None:
    parameters = with_changes(finished[0], output=str(tmp_path / "two"), shards=2, sample_fraction=0.0)
    manifest = run_job(parameters)
    engines = engine_manifests(manifest)
    assert manifest.num_shards == len(engines) == 2
    assert sum(engine.num_sequences for engine in engines) == manifest.num_rows
    assert all(engine.num_sequences > 0 for engine in engines)
    one, two = (pq.read_table(each.generations)["output_token_ids"] for each in (finished[1], manifest))
    assert two.equals(one)


def test_a_job_goes_on_with_other_shards_and_policy_without_redoing_a_row(
    finished: tuple[JobParameters, Manifest], tmp_path: Path
) -> None:
    parameters, before = finished
    output = tmp_path / "copy"
    shutil.copytree(parameters.output, output, ignore=shutil.ignore_patterns("manifest.json"))
    changed = with_changes(parameters, output=str(output), shards=2, policy="first-come")
    manifest = run_job(changed)
    assert part_rows(manifest) == part_rows(before)
    assert (manifest.num_shards, manifest.policy) == (2, "first-come")
    assert manifest.num_output_tokens == before.num_output_tokens


@pytest.fixture
def requests_with_bad_rows(tmp_path: Path) -> Path:
    prompts = ["fine", None, "also fine", "", "x" * 5000, "fine too"]
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table({"prompt": prompts}), path)
    return path


def test_bad_rows_become_errors_and_leave_the_others_alone(parameters: JobParameters, requests_with_bad_rows: Path) -> None:
    parameters = with_changes(parameters, requests=str(requests_with_bad_rows), max_error_rate=0.5)
    manifest = run_job(parameters)
    published = pq.read_table(manifest.generations).to_pylist()
    assert [row["finish_reason"] == "error" for row in published] == [False, True, False, True, True, False]
    assert all((row["error"] is not None) == (row["finish_reason"] == "error") for row in published)
    assert manifest.num_errors == 3
    with pytest.raises(JobFailed, match="3 of 6 rows"):
        run_job(with_changes(parameters, max_error_rate=0.4))
    assert pq.read_table(manifest.generations).num_rows == 6


def test_a_job_whose_rows_are_all_bad_still_publishes_them(parameters: JobParameters, tmp_path: Path) -> None:
    requests = tmp_path / "all-bad.parquet"
    pq.write_table(pa.table({"prompt": pa.array([None, ""], pa.string())}), requests)
    manifest = run_job(with_changes(parameters, requests=str(requests), max_error_rate=1.0))
    assert (manifest.num_rows, manifest.num_errors, manifest.num_output_tokens) == (2, 2, 0)
    assert pq.read_table(manifest.generations)["finish_reason"].to_pylist() == ["error", "error"]


def test_requests_that_are_not_there_end_the_job_before_it_begins(parameters: JobParameters, tmp_path: Path) -> None:
    with pytest.raises((ValueError, OSError), match="nothing-here"):
        run_job(with_changes(parameters, requests=str(tmp_path / "nothing-here.parquet")))


def test_every_sample_of_a_row_has_a_row_of_its_own(parameters: JobParameters) -> None:
    sampling = SamplingDefaults(max_tokens=4, n=3, temperature=1.0)
    manifest = run_job(with_changes(parameters, limit=4, sampling=sampling.model_dump()))
    published = pq.read_table(manifest.generations)
    assert published["sample_index"].to_pylist() == [0, 1, 2] * manifest.num_requests
