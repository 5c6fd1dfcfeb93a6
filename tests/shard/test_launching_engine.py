"""An engine whose steps are launched ahead, from staged requests to part files: whatever stops it, it loses no row.

Its tokens are the CPU engine's. The device is a stand-in, and the engine runs in this process.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from flashinfer_stand_in import stand_in_kernels
from halving import cut_in_half
from tiny_requests import write_requests

from blendserve_core.data.recover import recover
from blendserve_core.data.source import open_source
from blendserve_core.data.stage import stage
from blendserve_core.engine.cuda import step_runner
from blendserve_core.engine.cuda.load import load_cuda_executor
from blendserve_core.engine.load import load_cpu_executor
from blendserve_core.perf.engine_cost import engine_cost
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.lengths import estimate_lengths
from blendserve_core.plan.planner import make_plan
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.step import Capacity, Executor, LaunchingExecutor, StepPlan, StepResult
from blendserve_core.shard import worker
from blendserve_core.shard.in_flight import read_in_flight
from blendserve_core.shard.unfinished import load_unfinished
from blendserve_core.shard.work import Work
from blendserve_core.text.tokenizer import PromptTokenizer
from schemas.manifest import EngineManifest
from schemas.parameters import EngineOptions, JobParameters, SamplingDefaults
from schemas.shard import EngineSpec

NUM_REQUESTS, MAX_TOKENS = 12, 40
# Few pages and a small budget: prompts come in chunks beside decodes, requests wait, and some are retracted.
TIGHT = EngineOptions(max_sequences=5, max_step_tokens=48, kv_cache_tokens=288, threads=1)


@pytest.fixture(scope="module")
def shard(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A staged and planned job whose texts end by an end token, by a stop string or by their length."""
    folder = tmp_path_factory.mktemp("launching")
    parameters = JobParameters(
        requests=str(write_requests(folder / "requests.parquet")),
        output=str(folder),
        model=str(tiny_model_folder),
        sampling=SamplingDefaults(max_tokens=MAX_TOKENS, temperature=1.0, stop=["a", "Q"], stop_token_ids=[70, 71]),
    )
    stage(parameters, open_source(parameters), PromptTokenizer.load(tiny_model_folder), 256, folder / "staged")
    requests = RequestTable.load(folder / "staged")
    tree = build_tree(requests)
    make_plan(requests, tree, estimate_lengths(tree, requests), engine_cost(tiny_model_folder), "blend").save(folder / "plan")
    return folder


@pytest.fixture
def spec(shard: Path, tiny_model_folder: Path, tmp_path: Path) -> EngineSpec:
    return spec_of(shard, tiny_model_folder, tmp_path / "engine", TIGHT)


def spec_of(shard: Path, model_folder: Path, folder: Path, options: EngineOptions) -> EngineSpec:
    folder.mkdir()
    return EngineSpec(
        rank=0,
        staged_folder=str(shard / "staged"),
        plan_folder=str(shard / "plan"),
        output_folder=str(folder),
        done_folders=[str(folder)],
        model_folder=str(model_folder),
        policy="blend",
        dtype="float32",
        seed=0,
        engine=options,
        num_engines=2,  # this one has the machine for itself, but no time to measure it
    )


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """An engine takes SIGTERM for its own."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def serve_on(monkeypatch: pytest.MonkeyPatch, spec: EngineSpec, make: Callable[..., Executor]) -> EngineManifest:
    """What the engine's process does, with an executor of the test's."""
    monkeypatch.setattr(worker, "load_executor", lambda folder, requests, dtype, options, *_: make(folder, requests, options))
    recover(Path(spec.output_folder))
    return worker.serve(Work(spec), worker.StopFlag())


def on_cpu(folder: Path, requests: RequestTable, options: EngineOptions) -> Executor:
    return load_cpu_executor(folder, requests, "float32", options)


def nothing_happens(launched: StepPlan) -> None:
    pass


@dataclass
class Launcher:
    """Makes CUDA executors on the stand-in. ``happens`` is called behind each launch, with the step."""

    happens: Callable[[StepPlan], None] = nothing_happens
    steps: list[StepPlan] = field(default_factory=list)

    def __call__(self, folder: Path, requests: RequestTable, options: EngineOptions) -> Executor:
        executor = load_cuda_executor(folder, requests, "float32", options, kernels=stand_in_kernels, is_on_gpu=False)
        return Watched(executor, self)

    def at_step(self, number: int, call: Callable[[], None]) -> Launcher:
        """Behind the launch of this step, have something happen."""

        def happens(step: StepPlan) -> None:
            if len(self.steps) == number:
                call()

        self.happens = happens
        return self

    @property
    def num_launched_ahead(self) -> int:
        return sum(bool((step.token_ids < 0).any()) for step in self.steps)


@dataclass
class Watched:
    executor: LaunchingExecutor
    launcher: Launcher

    @property
    def capacity(self) -> Capacity:
        return self.executor.capacity

    def launch(self, step: StepPlan) -> Any:
        launched = self.executor.launch(step)
        self.launcher.steps.append(step)
        self.launcher.happens(step)
        return launched

    def finish(self, launched: Any) -> StepResult:
        return self.executor.finish(launched)

    def may_be_followed(self, step: StepPlan) -> bool:
        return self.executor.may_be_followed(step)

    def execute(self, step: StepPlan) -> StepResult:
        return self.finish(self.launch(step))

    def close(self) -> None:
        self.executor.close()


def outputs(spec: EngineSpec) -> dict[int, tuple[list[int], str, str]]:
    """Token ids, text and reason of every row that is on disk."""
    parts = sorted(Path(spec.output_folder).glob("part-*.parquet"))
    rows = [row for part in parts for row in pq.read_table(part).to_pylist()]
    assert max(Counter(row["row"] for row in rows).values(), default=1) == 1, "a row was finished twice"
    return {row["row"]: (row["output_token_ids"], row["output_text"], row["finish_reason"]) for row in rows}


@pytest.fixture(scope="module")
def expected(
    shard: Path, tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, tuple[list[int], str, str]]:
    """The CPU engine's rows, with room for all."""
    spec = spec_of(shard, tiny_model_folder, tmp_path_factory.mktemp("cpu") / "engine", EngineOptions(threads=1))
    with pytest.MonkeyPatch.context() as patch:
        manifest = serve_on(patch, spec, on_cpu)
    assert manifest.num_sequences == NUM_REQUESTS
    return outputs(spec)


def test_the_rows_are_the_cpu_engines(spec: EngineSpec, expected, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher()
    manifest = serve_on(monkeypatch, spec, launcher)
    assert {reason for _, _, reason in expected.values()} == {"stop", "length"}
    assert launcher.num_launched_ahead > len(launcher.steps) // 2
    assert manifest.num_retractions > 0
    assert outputs(spec) == expected


def stop_me() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("num_steps", [1, 4, 9, 20])
def test_told_to_stop_with_a_step_on_its_way_it_keeps_all_that_is_known_and_goes_on_from_there(
    spec: EngineSpec, expected, num_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Launcher().at_step(num_steps, stop_me)
    assert serve_on(monkeypatch, spec, stopped).interrupted
    assert len(stopped.steps) <= num_steps + 1
    assert outputs(spec).items() <= expected.items()
    half_done = load_unfinished([Path(spec.output_folder)])
    for row, token_ids in half_done.items():
        assert token_ids.tolist() == expected[row][0][: len(token_ids)]
        assert row not in outputs(spec)
    assert half_done or num_steps == 1
    assert len(read_in_flight(Path(spec.output_folder))) == 0
    assert not serve_on(monkeypatch, spec, Launcher()).interrupted
    assert outputs(spec) == expected


def test_it_can_be_stopped_again_and_again(spec: EngineSpec, expected, monkeypatch: pytest.MonkeyPatch) -> None:
    num_runs = 1
    while serve_on(monkeypatch, spec, Launcher().at_step(6, stop_me)).interrupted:
        num_runs += 1
    assert num_runs > 4
    assert outputs(spec) == expected


def break_off() -> None:
    raise RuntimeError("the device is gone")


def test_what_ends_in_the_middle_has_named_the_rows_of_both_steps_and_lost_none_that_was_finished(
    spec: EngineSpec, expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Launcher().at_step(12, break_off)
    with pytest.raises(RuntimeError, match="the device is gone"):
        serve_on(monkeypatch, spec, broken)
    under_way = np.unique(np.concatenate([step.seq_ids for step in broken.steps[-2:]]))
    assert (broken.steps[-1].token_ids < 0).any()
    assert read_in_flight(Path(spec.output_folder)).tolist() == under_way.tolist()
    recover(Path(spec.output_folder))
    finished = outputs(spec)
    assert finished
    assert finished.items() <= expected.items()
    serve_on(monkeypatch, spec, Launcher())
    assert outputs(spec) == expected


def test_steps_that_are_cut_in_two_are_stopped_and_resumed_alike(
    spec: EngineSpec, expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_runner, "choose_cut", cut_in_half)
    assert serve_on(monkeypatch, spec, Launcher().at_step(7, stop_me)).interrupted
    serve_on(monkeypatch, spec, Launcher())
    assert outputs(spec) == expected


def test_two_ranks_are_stopped_and_resumed_alike(
    shard: Path, tiny_model_folder: Path, tmp_path: Path, expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = TIGHT.model_copy(update={"tensor_parallel": 2})
    spec = spec_of(shard, tiny_model_folder, tmp_path / "engine", options)
    assert serve_on(monkeypatch, spec, Launcher().at_step(9, stop_me)).interrupted
    serve_on(monkeypatch, spec, Launcher())
    assert outputs(spec) == expected
