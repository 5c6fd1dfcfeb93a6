"""From timings to rates, and that calibration runs every operator it times."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cuda_on_cpu import CPU
from flashinfer_stand_in import stand_in_kernels
from tiny_models import SIZES, saved_model
from transformers import LlamaConfig

from blendserve_core.engine.cuda import calibrate, workspaces
from blendserve_core.engine.cuda.calibrate import OperatorBench
from blendserve_core.engine.cuda.lanes import HostLanes
from blendserve_core.perf.cpu_timings import CpuTimings
from blendserve_core.perf.cuda_measured import CudaMeasurement, read_cuda_measurement, write_cuda_measurement
from blendserve_core.perf.cuda_timings import CudaTimings
from schemas.parameters import EngineOptions

OPERATORS = CpuTimings(
    num_parameters=10**9,
    weight_bytes=2 * 10**9,
    layers=((1.0, 1e-3), (256.0, 1.5e-3), (2048.0, 5e-3)),
    prefill=(1e12, 2e-3),
    decode=((1e9, 0.5e-3), (4e9, 1.4e-3)),
)


def timings(**values: object) -> CudaTimings:
    defaults = {
        "operators": OPERATORS,
        "lm_head": (2e12, 4e-3),
        "decode_on_sms": {24: 2.0, 40: 1.3, 56: 1.01},
        "decode_on_all_s": 1.0,
        "whole_s": (1.0, 0.8),
        "overlapped_s": 1.4,
        "streams_s": 1.6,
    }
    return CudaTimings(**defaults | values)  # type: ignore[arg-type]


def test_rates_are_slopes_of_what_was_timed() -> None:
    spec = timings().measurement("gpu", 132, 141e9).hardware
    assert spec.name == "gpu"
    assert spec.gemm_flops_per_s == pytest.approx(2 * 10**9 * 1792 / 3.5e-3)
    assert spec.weight_bytes_per_s == pytest.approx(2e12)
    assert spec.kv_bytes_per_s == pytest.approx(3e9 / 0.9e-3)
    assert spec.lm_head_flops_per_s == pytest.approx(5e14)
    assert spec.attention_flops_per_s == pytest.approx(5e14)
    assert spec.memory_bytes == 141e9


def test_what_overlap_leaves_of_the_shorter_time_is_the_interference() -> None:
    assert timings().measurement("gpu", 132, 141e9).interference == pytest.approx(0.5)
    assert timings(overlapped_s=0.9).measurement("gpu", 132, 141e9).interference == 0.0
    assert timings(overlapped_s=9.0).measurement("gpu", 132, 141e9).interference == 1.0


def test_attention_is_saturated_where_more_multiprocessors_bring_nothing() -> None:
    rates = timings().measurement("gpu", 132, 141e9).overlap
    assert rates.saturating_sms == pytest.approx((24 * 2.0 + 40 * 1.3) / 2)
    assert rates.attention_slowdown(24) == pytest.approx(50 / 24)
    assert rates.sharing == pytest.approx(1.6)


def test_a_measurement_is_read_as_it_was_written_and_damage_is_no_measurement(tmp_path: Path) -> None:
    path = tmp_path / "hardware" / "cuda-1.json"
    measured = timings().measurement("gpu", 132, 141e9)
    assert read_cuda_measurement(path) is None
    write_cuda_measurement(path, measured)
    assert isinstance(measured, CudaMeasurement)
    assert read_cuda_measurement(path) == measured
    path.write_text(path.read_text()[:-9])
    assert read_cuda_measurement(path) is None


def test_every_operator_runs_while_it_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"ROWS": (1, 8, 16), "LM_HEAD_ROWS": 4, "NUM_PROMPT_TOKENS": 40, "NUM_DECODES": 4, "CONTEXTS": (16, 40)}
    for name, value in (small | {"OVERLAPPED_ROWS": 6, "MAX_CONTEXT": 48}).items():
        monkeypatch.setattr(calibrate, name, value)
    monkeypatch.setattr(workspaces, "WORKSPACE_BYTES", 16)
    saved_model(LlamaConfig(**SIZES), tmp_path)
    num_calls = 0

    def seconds_of(call) -> float:
        nonlocal num_calls
        num_calls += 1
        call()
        return 1e-3 * num_calls

    bench = OperatorBench.make(tmp_path, "float32", EngineOptions(), stand_in_kernels(), CPU, seconds_of)
    found = bench.timings(HostLanes(), {24: HostLanes(), 40: HostLanes()}, HostLanes())
    assert set(found.decode_on_sms) == {24, 40}
    assert found.measurement("gpu", 132, 1e9).hardware.gemm_flops_per_s > 0
    assert torch.isfinite(bench.setting.pool.layer(0)).all()
