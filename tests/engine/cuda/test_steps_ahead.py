"""The CUDA engine with the next step launched before the tokens of this one are known, without a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cuda_on_cpu import call_again, cuda_executor
from executor_contract import CAPACITY, PROMPT_LENS, float32_model_folder, requests_of  # noqa: F401
from flashinfer_stand_in import StandInWrapper, stand_in_kernels
from halving import cut_in_half
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from blendserve_core.engine.cuda import graphs, step_runner
from blendserve_core.engine.cuda.executor import CudaExecutor
from blendserve_core.engine.cuda.kernels import Kernels
from blendserve_core.engine.cuda.lanes import HostLanes
from blendserve_core.engine.cuda.load import load_cuda_executor
from blendserve_core.kv.segments import no_segments
from blendserve_core.requests import RequestTable
from blendserve_core.run import run_steps
from blendserve_core.schedule.policies.ordered import OrderedAdmission
from blendserve_core.schedule.scheduler import Scheduler
from blendserve_core.schedule.step import Capacity, Executor, StepPlan, StepResult
from schemas.parameters import EngineOptions

EOS = (3, 17, 40)
MIXED = {"max_tokens": np.array([1, 20, 7, 30, 12, 1, 25, 9, 16, 2, 30]), "ignore_eos": False, "logprobs": -1}


class OneAtATime:
    """Hides from the loop that the executor could be given the next step early."""

    def __init__(self, executor: CudaExecutor) -> None:
        self._executor = executor
        self.capacity = executor.capacity

    def execute(self, step: StepPlan) -> StepResult:
        return self._executor.execute(step)

    def close(self) -> None:
        self._executor.close()


def serve(requests: RequestTable, executor: Executor) -> tuple[dict[int, list[int]], list[StepPlan]]:
    """Every request's tokens, and the steps as their reader sees them."""
    order = np.arange(requests.num_requests)
    segments = no_segments(requests.num_requests)
    scheduler = Scheduler(requests, order, segments, order, OrderedAdmission(order), executor.capacity, EOS)
    records = list(run_steps(scheduler, executor))
    finished = [end for record in records for end in record.finished]
    return {end.request: end.token_ids.tolist() for end in finished}, [record.step for record in records]


@pytest.mark.parametrize("engine", ["whole", "cut", "replayed"])
@pytest.mark.parametrize("num_pages", [64, 17], ids=["all fits", "some are retracted"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_tokens_are_those_of_one_step_at_a_time(
    float32_model_folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    num_pages: int,
    temperature: float,
) -> None:
    monkeypatch.setattr(step_runner, "choose_cut", cut_in_half if engine == "cut" else step_runner.choose_cut)
    monkeypatch.setattr(graphs, "MIN_OCCURRENCES", 1)
    monkeypatch.setattr(graphs, "BUCKET_ROWS", 4)
    requests, capacity = requests_of(temperature=temperature, **MIXED), Capacity(num_pages, 16, 128, 6, 256)
    lanes, capture = HostLanes() if engine == "cut" else None, call_again if engine == "replayed" else None

    def make() -> CudaExecutor:
        return cuda_executor(float32_model_folder, requests, capacity, lanes, capture, min_tokens_saved=10**9)

    ahead, steps = serve(requests, make())
    assert any((step.token_ids < 0).any() for step in steps), "no step was launched ahead"
    assert ahead == serve(requests, OneAtATime(make()))[0]
    assert len(ahead) == len(PROMPT_LENS)


def test_rows_that_the_host_samples_hold_their_steps_back_and_keep_their_tokens(float32_model_folder: Path) -> None:  # noqa: F811
    penalty = np.ones(len(PROMPT_LENS), dtype=np.float32)
    penalty[2] = 1.4
    requests = requests_of(**(MIXED | {"repetition_penalty": penalty}))
    ahead, steps = serve(requests, cuda_executor(float32_model_folder, requests, CAPACITY))
    plain, _ = serve(requests, OneAtATime(cuda_executor(float32_model_folder, requests, CAPACITY)))
    assert ahead == plain
    with_it = [2 in step.seq_ids[step.is_sampled] for step in steps]
    followers = [(step.token_ids < 0).any() for step in steps[1:]]
    assert not any(is_held and is_early for is_held, is_early in zip(with_it, followers, strict=False))
    assert any(followers)


def test_two_ranks_share_the_tokens_that_the_first_one_samples(float32_model_folder: Path) -> None:  # noqa: F811
    requests, outputs = requests_of(**MIXED), []
    for size in (1, 2):
        options = EngineOptions(kv_cache_tokens=1024, max_sequences=16, max_step_tokens=256, tensor_parallel=size)
        executor = load_cuda_executor(
            float32_model_folder, requests, "float32", options, kernels=stand_in_kernels, is_on_gpu=False
        )
        try:
            tokens, steps = serve(requests, executor)
        finally:
            executor.close()
        assert any((step.token_ids < 0).any() for step in steps)
        outputs.append(tokens)
    assert outputs[0] == outputs[1]


WAITING_OPS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::unique", "aten::equal"}
"""Operators whose result the host needs, so that on a device each of them waits for all that was started before."""


class WaitsAskedFor(TorchDispatchMode):
    """Writes down the operators that would make the host wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        is_masked = name == "aten::index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name in WAITING_OPS or is_masked:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def as_on_a_device(kernels: Kernels) -> Kernels:
    """The stand-in's kernels loop over the values of tensors, which those of a device do inside."""

    class Wrapper(StandInWrapper):
        plan = _unwatched(StandInWrapper.plan)
        run = _unwatched(StandInWrapper.run)

    functions = {field.name: _unwatched(getattr(kernels, field.name)) for field in fields(kernels)}
    return Kernels(**(functions | {"attention_wrapper": Wrapper}))


def _unwatched(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return call


@dataclass
class Watched:
    """An executor whose launches are watched; ``happened`` says in which order steps were started and waited for."""

    executor: CudaExecutor
    waits: WaitsAskedFor
    happened: list[str]

    @property
    def capacity(self) -> Capacity:
        return self.executor.capacity

    def launch(self, step: StepPlan) -> Any:
        self.happened.append("launch")
        with self.waits:
            return self.executor.launch(step)

    def finish(self, launched: Any) -> StepResult:
        self.happened.append("wait")
        return self.executor.finish(launched)

    def execute(self, step: StepPlan) -> StepResult:
        return self.finish(self.launch(step))

    def may_be_followed(self, step: StepPlan) -> bool:
        return self.executor.may_be_followed(step)

    def close(self) -> None:
        self.executor.close()


@pytest.mark.parametrize(
    "columns", [{}, {"temperature": 0.9, "top_k": 5, "top_p": 0.9, "min_p": 0.01}], ids=["greedy", "drawn"]
)
def test_in_the_steady_state_nothing_is_waited_for_but_the_step_before(
    float32_model_folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    columns: dict[str, float],
) -> None:
    monkeypatch.setattr("cuda_on_cpu.stand_in_kernels", lambda: as_on_a_device(stand_in_kernels()))
    requests = requests_of(**(MIXED | columns))
    watched = Watched(cuda_executor(float32_model_folder, requests, CAPACITY), WaitsAskedFor(), [])
    _, steps = serve(requests, watched)
    assert watched.waits.names == []
    assert watched.happened == ["launch", *["launch", "wait"] * (len(steps) - 1), "wait"]


def test_a_wait_that_a_launch_asks_for_is_seen() -> None:
    with WaitsAskedFor() as waits:
        tensor = torch.arange(4)
        assert int(tensor[1]) == 1
        tensor[tensor > 2]
    assert waits.names == ["aten::_local_scalar_dense", "aten::index"]
