"""What an engine measured is found again by who asks for the same machine, shapes and options, and by nobody else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from blendserve_core.perf.cascade import CascadeCosts
from blendserve_core.perf.cpu_timings import CpuTimings
from blendserve_core.perf.engine_cost import engine_cost
from blendserve_core.perf.hardware import hardware_spec
from blendserve_core.perf.measured import (
    cpu_model,
    measured_cascade,
    measured_cpu,
    measurement_path,
    read_measurement,
    write_measurement,
)
from blendserve_core.perf.model_spec import ModelSpec
from schemas.parameters import EngineOptions

MODEL = ModelSpec("m", 2, 64, 96, 4, 2, 16, 100, False)
TIMINGS = CpuTimings(10, 20, ((1, 1e-3), (16, 2e-3), (256, 9e-3)), (3e9, 0.1), ((1e6, 1e-3), (4e6, 4e-3)))
SPEC = TIMINGS.hardware(2, 8e9)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_nothing_is_measured_before_an_engine_ran() -> None:
    assert measured_cpu(MODEL, "bfloat16", EngineOptions()) is None


def test_a_measurement_is_read_back_as_it_was_written(cache: Path) -> None:
    path = measurement_path(MODEL, "bfloat16", EngineOptions())
    write_measurement(path, SPEC, TIMINGS)
    assert measured_cpu(MODEL, "bfloat16", EngineOptions()) == SPEC
    assert list((cache / "blendserve" / "hardware").iterdir()) == [path]


def test_costs_of_sharing_are_read_back_and_usual_ones_serve_before() -> None:
    assert measured_cascade(MODEL, "bfloat16", EngineOptions()) == CascadeCosts()
    timings = replace(TIMINGS, cascade=((64, 1024, 5e-4), (64, 256, 5e-5), (2, 256, -5e-5)))
    write_measurement(measurement_path(MODEL, "bfloat16", EngineOptions()), SPEC, timings)
    assert measured_cascade(MODEL, "bfloat16", EngineOptions()) == timings.cascade_costs != CascadeCosts()


def test_a_measurement_is_a_profile_for_the_simulator() -> None:
    path = measurement_path(MODEL, "bfloat16", EngineOptions())
    write_measurement(path, SPEC, TIMINGS)
    assert hardware_spec(str(path)) == SPEC


@pytest.mark.parametrize(
    "other",
    [
        (replace(MODEL, hidden_size=128), "bfloat16", EngineOptions()),
        (MODEL, "float32", EngineOptions()),
        (MODEL, "bfloat16", EngineOptions(threads=63)),
        (MODEL, "bfloat16", EngineOptions(kernels="torch")),
    ],
    ids=["shapes", "dtype", "threads", "kernels"],
)
def test_what_changes_a_rate_is_measured_on_its_own(other) -> None:
    assert measurement_path(*other) != measurement_path(MODEL, "bfloat16", EngineOptions())


def test_what_changes_no_rate_shares_a_measurement() -> None:
    options = EngineOptions(max_sequences=7, kv_cache_tokens=1000)
    renamed = replace(MODEL, name="other", vocab_size=7)
    assert measurement_path(renamed, "bfloat16", options) == measurement_path(MODEL, "bfloat16", EngineOptions())


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"spec": {"name": "cpu"}}', '{"spec": 3}'])
def test_a_broken_file_counts_as_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    assert read_measurement(path) is None


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), "fast", None])
def test_rates_that_cannot_be_are_no_measurement(rate: object, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    write_measurement(path, SPEC, TIMINGS)
    content = json.loads(path.read_text())
    content["spec"]["kv_bytes_per_s"] = rate
    path.write_text(json.dumps(content))
    assert read_measurement(path) is None


def test_the_processor_is_named_as_linux_names_it(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Abacus 9000\nprocessor\t: 1\nmodel name\t: Abacus 9000\n")
    assert cpu_model(cpuinfo) == "Abacus 9000"
    assert cpu_model(tmp_path / "absent")


def test_an_engines_cost_is_at_measured_rates_once_there_are_some(tiny_model_folder: Path) -> None:
    assert engine_cost(tiny_model_folder).hardware.name == "cpu (assumed)"
    model = ModelSpec.from_config(tiny_model_folder, dtype="float32")
    write_measurement(measurement_path(model, "float32", EngineOptions()), SPEC, TIMINGS)
    assert engine_cost(tiny_model_folder, "float32").hardware == SPEC
    assert engine_cost(tiny_model_folder, "bfloat16").hardware.name == "cpu (assumed)"


def test_engines_on_one_machine_share_its_rates_unless_their_threads_are_given(tiny_model_folder: Path) -> None:
    alone, one_of_two = engine_cost(tiny_model_folder), engine_cost(tiny_model_folder, num_engines=2)
    assert one_of_two.gemm_token_s == 2 * alone.gemm_token_s
    assert one_of_two.kv_token_s == 2 * alone.kv_token_s
    given = EngineOptions(threads=1)
    assert engine_cost(tiny_model_folder, options=given, num_engines=2) == engine_cost(tiny_model_folder, options=given)
