"""The measurement runs the engine's own operators on every kind of kernel, and happens once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from blendserve_core.engine.cpu import attention_times, calibrate
from blendserve_core.engine.cpu.attention_times import FREE_CASCADE, sharing_step
from blendserve_core.engine.cpu.calibrate import (
    MedianTimer,
    measure_cpu_once,
    narrowed,
    num_matrix_parameters,
    time_operators,
)
from blendserve_core.engine.cpu.native.choice import choose_kernels
from blendserve_core.engine.cpu.native.grouping import group_step
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.perf.measured import POSITIVE_RATES, measured_cpu, measurement_path, read_spread
from blendserve_core.perf.model_spec import ModelSpec
from schemas.parameters import EngineOptions

CONFIG = ModelConfig.from_dict(
    {
        "model_type": "llama",
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }
)


@pytest.fixture(autouse=True)
def few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short contexts and prompts, and one run of each."""
    sharing = ((4, 96), (4, 32), (2, 32))
    for name, value in {"CONTEXTS": (32, 96), "NUM_PROMPT_TOKENS": 48, "NUM_DECODES": 3, "SHARING": sharing}.items():
        monkeypatch.setattr(attention_times, name, value)
    monkeypatch.setattr(calibrate, "MIN_REPEATS", 1)
    monkeypatch.setattr(calibrate, "MIN_SECONDS", 0.0)


def one_second(call: Callable[[], object]) -> float:
    call()
    return 1.0


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_operator_is_timed_with_the_engines_kernels(kernels, dtype: torch.dtype) -> None:
    timings = time_operators(CONFIG, choose_kernels(kernels, CONFIG, 1), dtype, one_second)
    assert timings.num_parameters == 2 * num_matrix_parameters(CONFIG)
    assert timings.weight_bytes == timings.num_parameters * dtype.itemsize
    assert timings.layers == ((1, 1.0), (16, 1.0), (256, 1.0))
    token_bytes = 2 * CONFIG.kv_size * dtype.itemsize
    assert timings.decode == ((3 * 33 * token_bytes, 0.5), (3 * 97 * token_bytes, 0.5))
    assert timings.prefill == (4 * 64 * 48 * 49 / 2, 0.5)
    assert (timings.cascade is None) == (kernels == "torch")


def test_decodes_are_timed_with_their_prefix_read_once_and_read_by_each() -> None:
    step = sharing_step(num_rows=3, num_shared=32)
    assert step.page_indices.tolist() == [0, 1, 2, 0, 1, 3, 0, 1, 4]
    assert group_step(step, None).shared is None
    together = group_step(step, FREE_CASCADE).shared
    assert together is not None
    assert together.kv_lens.tolist() == [32, 32, 32]


def test_matrix_parameters_are_those_the_cost_model_counts() -> None:
    spec = ModelSpec("m", 2, 64, 96, 4, 2, 16, 100, False)
    num_norm_parameters = 2 * CONFIG.hidden_size
    assert num_matrix_parameters(CONFIG) == spec.num_layer_parameters - num_norm_parameters


def test_wide_models_are_measured_narrower_with_the_same_heads() -> None:
    wide = replace(CONFIG, hidden_size=8192, intermediate_size=28672, num_heads=64, num_kv_heads=8, head_dim=128)
    narrow = narrowed(wide)
    assert (narrow.hidden_size, narrow.query_size, narrow.head_dim) == (2048, 2048, 128)
    assert narrow.num_heads // narrow.num_kv_heads == 8
    assert narrowed(CONFIG) == CONFIG


def test_the_median_leaves_out_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0])
    monkeypatch.setattr(calibrate, "MIN_REPEATS", 3)
    monkeypatch.setattr(calibrate.time, "perf_counter", lambda: next(clock))
    calls: list[None] = []
    seconds_of = MedianTimer()
    assert seconds_of(lambda: calls.append(None)) == 2.0
    assert len(calls) == 4
    assert seconds_of.spread == 1.0


@pytest.fixture
def threads_kept():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads_kept")
def test_a_machine_is_measured_once_and_anew_when_it_was_busy_or_the_file_is_broken(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    caplog.set_level(logging.INFO)
    options = EngineOptions(threads=1, kernels="torch")
    model = ModelSpec.from_config(tiny_model_folder, dtype="float32")

    measure_cpu_once(tiny_model_folder, "float32", options)
    spec = measured_cpu(model, "float32", options)
    assert spec is not None
    assert all(getattr(spec, name) > 0 for name in POSITIVE_RATES)
    assert "measured this CPU" in caplog.text

    caplog.clear()
    measure_cpu_once(tiny_model_folder, "float32", options)
    assert "measured" not in caplog.text

    caplog.clear()
    path = measurement_path(model, "float32", options)
    path.write_text(path.read_text().replace('"spread": 0.0', '"spread": 3.0'))
    measure_cpu_once(tiny_model_folder, "float32", options)
    assert "measured this CPU" in caplog.text
    assert read_spread(path) == 0.0

    path.write_text("{")
    measure_cpu_once(tiny_model_folder, "float32", options)
    assert measured_cpu(model, "float32", options) is not None


@pytest.mark.usefixtures("threads_kept")
def test_an_engine_serves_though_its_measurement_cannot_be_kept(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    measure_cpu_once(tiny_model_folder, "float32", EngineOptions(threads=1, kernels="torch"))
    assert "cannot be kept" in caplog.text
