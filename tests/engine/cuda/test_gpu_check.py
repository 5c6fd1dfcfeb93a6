"""The parts of benchmarks/gpu/check.py that need no GPU, on the stand-in: what is run for the first time there has run here."""

from __future__ import annotations

import itertools
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cuda_on_cpu import CPU, call_again, cuda_executor
from flashinfer_stand_in import stand_in_kernels
from random_lanes import RandomLanes

from blendserve_core.engine.cuda import calibrate, workspaces
from blendserve_core.engine.cuda.calibrate import OperatorBench
from blendserve_core.engine.cuda.lanes import HostLanes
from blendserve_core.engine.cuda.step_runner import StepRunner
from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.hardware import h200
from blendserve_core.perf.presets import llama_3_8b
from blendserve_core.requests import RequestTable, SamplingColumns
from blendserve_core.schedule.step import Capacity
from blendserve_core.sim.executor import SimulatedExecutor, simulated_capacity
from blendserve_core.sim.workload import EOS_TOKEN_ID, Workload
from schemas.parameters import EngineOptions

sys.path.append(str(Path(__file__).parents[3] / "benchmarks" / "gpu"))
import bench as bench_module
import check
import correctness
import cut_steps
import overlap_times
import serving_time
from idle import IdleMeter, MeteredExecutor
from random_model import TINY, random_model_folder


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspaces, "WORKSPACE_BYTES", 16)
    monkeypatch.setattr(correctness, "NUM_OUTPUTS", 4)
    monkeypatch.setattr(correctness, "TINY", TINY | {"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 128})
    monkeypatch.setattr(calibrate, "OVERLAPPED_ROWS", 6)
    monkeypatch.setattr(calibrate, "MAX_CONTEXT", 48)
    monkeypatch.setattr(overlap_times, "OVERLAPPED_ROWS", 6)
    monkeypatch.setattr(overlap_times, "MAX_CONTEXT", 48)


def test_attention_agrees_with_the_reference_in_float32() -> None:
    checks = correctness.check_attention(stand_in_kernels(), CPU, torch.float32)
    assert [check.name for check in checks] == ["attention, decode", "attention, chunk", "attention, shared prefix"]
    assert all(check.value < 1e-5 and check.is_good for check in checks)


def test_hidden_states_and_texts_are_those_of_the_cpu_engine(tmp_path: Path) -> None:
    hidden, texts = correctness.check_tokens(tmp_path, stand_in_kernels, is_on_gpu=False)
    assert hidden.value < 1e-5
    assert texts.value == 1.0


def test_a_cut_step_is_compared_with_the_whole_one_as_it_is_and_captured(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(cut_steps, "NUM_DECODES", 6)
    monkeypatch.setattr(cut_steps, "CONTEXT", 40)
    monkeypatch.setattr(cut_steps, "TINY", correctness.TINY)
    orders = RandomLanes(random.Random(2))
    checks = cut_steps.check_cut_steps(
        tmp_path, stand_in_kernels(), CPU, torch.float32, HostLanes(), {"any order": orders}, call_again
    )
    assert [check.name for check in checks] == ["cut step, any order", "cut step, any order, captured"]
    assert all(check.value < 1e-5 and check.is_good for check in checks)
    assert len(orders.programs) == 4, "a run as it is, then one that is captured and replayed"


def test_a_nan_is_no_small_error() -> None:
    error = correctness.relative_error(torch.tensor([1.0, torch.nan]), torch.ones(2))
    assert not error < correctness.TOLERANCE


def test_overlap_is_timed_at_every_ratio_on_every_kind_of_lanes(tmp_path: Path) -> None:
    clock = itertools.count(1)

    def seconds_of(call) -> float:
        call()
        return 1e-3 * next(clock)

    folder = random_model_folder(tmp_path, correctness.TINY)
    bench = OperatorBench.make(folder, "float32", EngineOptions(), stand_in_kernels(), CPU, seconds_of)
    times = overlap_times.overlap_times(bench, HostLanes(), {"green 40": HostLanes()})
    assert [(time.ratio, time.lanes) for time in times] == [
        (ratio, lanes) for ratio in ("1:1", "2:1", "1:2") for lanes in ("none", "green 40")
    ]
    assert all(time.speed_up == 1.0 for time in times if time.lanes == "none")


def test_a_section_that_fails_is_a_row_of_the_one_table_that_is_printed_last(tmp_path: Path, monkeypatch, capsys) -> None:
    def breaks(bench: check.Bench, findings: check.Findings) -> None:
        raise RuntimeError("no such device")

    monkeypatch.setitem(check.SECTIONS, "roofline", breaks)
    bench = check.Bench(CPU, stand_in_kernels, tmp_path, seconds=1.0, dtype=torch.float32)
    is_good = check.check(bench, "a stand-in", ["roofline", "correctness"], tmp_path / "found.json")
    assert not is_good
    found = json.loads((tmp_path / "found.json").read_text())
    names = [row[0] for row in found["table"]]
    assert names[:3] == ["device", "roofline", "attention, decode"]
    assert ["roofline", "RuntimeError: no such device", "BELOW TARGET"] in found["table"]
    printed = capsys.readouterr().out.split("\n\n")[-1].strip().splitlines()
    assert [line.split("  ")[0] for line in printed] == names


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that the sections ask a device for, from the host; every operator takes a little longer than the last."""
    clock = itertools.count(1)

    def seconds_of(call) -> float:
        call()
        return 1e-3 * next(clock)

    properties = SimpleNamespace(name="a stand-in", multi_processor_count=132, total_memory=141e9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    for module in (check, bench_module):
        for name in ("one_stream", "plain_streams", "green_streams"):
            monkeypatch.setattr(module, name, lambda *_: HostLanes(), raising=False)
        monkeypatch.setattr(module, "cuda_capture", lambda: call_again)
        monkeypatch.setattr(module, "device_seconds", seconds_of)
    monkeypatch.setattr(bench_module, "LLAMA_3_8B", correctness.TINY)
    monkeypatch.setattr(bench_module, "free_bytes", lambda: bench_module.WORKSPACE_BYTES + 2**22)
    monkeypatch.setattr(bench_module.OperatorBench, "make", _in_float32(bench_module.OperatorBench.make))
    monkeypatch.setattr(IdleMeter, "begin", lambda meter: meter.begins.append(None))  # type: ignore[arg-type]
    monkeypatch.setattr(IdleMeter, "end", lambda meter: meter.ends.append(None))  # type: ignore[arg-type]
    monkeypatch.setattr(IdleMeter, "seconds", lambda meter: 0.0)


def _in_float32(make):
    return lambda folder, _dtype, *rest: make(folder, "float32", *rest)


def test_every_section_that_a_host_can_run_runs_and_tells_of_itself(tmp_path: Path, monkeypatch, no_device: None) -> None:
    monkeypatch.setattr(check, "ROOFLINE_ROWS", 8)
    monkeypatch.setattr(check, "ROOFLINE_CONTEXT", 20)
    monkeypatch.setattr(check, "mixed_workload", lambda *_, **__: workload_of(6))
    monkeypatch.setattr(check, "measure_rates", lambda *_: overlap_times.Rates(1e15, 4e12))
    for name, value in {
        "ROWS": (1, 8, 16),
        "LM_HEAD_ROWS": 4,
        "NUM_PROMPT_TOKENS": 40,
        "NUM_DECODES": 4,
        "CONTEXTS": (16, 40),
    }.items():
        monkeypatch.setattr(calibrate, name, value)
    monkeypatch.setattr(cut_steps, "NUM_DECODES", 6)
    monkeypatch.setattr(cut_steps, "CONTEXT", 40)
    monkeypatch.setattr(cut_steps, "TINY", correctness.TINY)
    bench = check.Bench(CPU, stand_in_kernels, tmp_path, seconds=60.0, dtype=torch.float32)
    sections = [name for name in check.SECTIONS if name != "sm-sets"]
    check.check(bench, "a stand-in", sections, tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert not [row for row in found["table"] if row[0] in sections], "a section broke off"
    assert {"correctness", "cut steps", "rates", "measured", "overlap", "roofline", "serving", "table"} <= set(found)
    assert [served["is_whole"] for served in found["serving"].values()] == [True, True]


def test_a_workload_is_served_with_steps_launched_ahead_and_metered(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(IdleMeter, "end", lambda meter: meter.ends.append(None))  # type: ignore[arg-type]
    workload = workload_of(12)
    folder = random_model_folder(tmp_path, correctness.TINY)
    capacity = Capacity(num_pages=64, page_size=16, max_step_tokens=128, max_sequences=8, max_sequence_tokens=256)
    launched = []
    executor = MeteredExecutor(cuda_executor(folder, workload.requests, capacity), IdleMeter())
    monkeypatch.setattr(StepRunner, "run", _noting(StepRunner.run, launched))
    served = serving_time.serve_for(60.0, "depth-first", workload, executor, CostModel(llama_3_8b(), h200()))
    assert served.num_tokens == 12 * 45
    assert len(executor.meter.ends) == len(launched)
    assert any((step.token_ids < 0).any() for step in launched)


def _noting(run, launched: list):
    def noting(self, step, sampled_before=None):
        launched.append(step)
        return run(self, step, sampled_before)

    return noting


def workload_of(num: int) -> Workload:
    """Prompts of 40 tokens with outputs of 5."""
    lens, outputs = np.full(num, 40, np.int32), np.full(num, 5, np.int32)
    rng = np.random.default_rng(0)
    requests = RequestTable(
        row=np.arange(num),
        sample_index=np.zeros(num, np.int32),
        prompt_start=np.cumsum(lens, dtype=np.int64) - lens,
        num_prompt_tokens=lens,
        token_ids=rng.integers(3, 100, num * 40).astype(np.int32),
        sampling=SamplingColumns.greedy(num, 64),
    )
    return Workload(requests, outputs)


@pytest.mark.parametrize("policy", ["depth-first", "blend"])
def test_serving_counts_every_token_of_a_workload(policy: str) -> None:
    num = 30
    workload = workload_of(num)
    cost = CostModel(llama_3_8b(), h200())
    # An executor that never ends a sequence by itself.
    endless = SimulatedExecutor(cost, np.full(num, 1000), EOS_TOKEN_ID, simulated_capacity(cost))
    served = serving_time.serve_for(60.0, policy, workload, endless, cost)
    assert served.num_tokens == num * 45
    assert served.is_whole
