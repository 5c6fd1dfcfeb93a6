"""A job whose output is a URL: everything is there once its manifest is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest

from blendserve_core.job.prepare import prepare
from blendserve_core.job.report import finished_manifest
from blendserve_core.job.run import run_job
from schemas.parameters import EngineOptions, JobParameters, SamplingDefaults

URL = "memory://bucket/answers"


@pytest.fixture
def store() -> Any:
    fs = fsspec.filesystem("memory")
    fs.rm("/", recursive=True)
    return fs


@pytest.fixture
def parameters(
    requests_file: Path, tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Any
) -> JobParameters:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return JobParameters(
        requests=str(requests_file),
        output=URL,
        model=str(tiny_model_folder),
        sample_fraction=0.0,
        sampling=SamplingDefaults(max_tokens=2),
        engine=EngineOptions(kv_cache_tokens=2048, max_sequences=8, threads=1),
    )


def names(store: Any) -> list[str]:
    return sorted(path.removeprefix("/bucket/answers/") for path in store.find("/bucket/answers"))


def test_a_job_puts_its_files_there_and_none_of_its_manifest_before_all_else_is_there(
    parameters: JobParameters, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise OSError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(type(store), "put_file", unreachable)
        with pytest.raises(OSError, match="the store is away"):
            run_job(parameters)
    assert names(store) == []
    manifest = run_job(parameters)
    assert names(store) == ["generations.parquet", "manifest.json", "report.md"]
    there = json.loads(store.cat("/bucket/answers/manifest.json"))
    assert (there["generations"], there["fingerprint"]) == (f"{URL}/generations.parquet", manifest.fingerprint)
    with store.open("/bucket/answers/generations.parquet") as file:
        assert pq.read_table(file).equals(pq.read_table(manifest.generations))
    store.rm("/bucket/answers/manifest.json")
    assert finished_manifest(prepare(parameters)) is None


def test_a_url_that_nothing_can_write_to_is_refused_at_once(parameters: JobParameters) -> None:
    with pytest.raises(ValueError, match="nowhere://bucket: cannot be written to"):
        prepare(parameters.model_copy(update={"output": "nowhere://bucket"}))
