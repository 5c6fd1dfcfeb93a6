"""An engine process from the outside: it is followed, dies, is told to stop, and loses nothing that was finished."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from blendserve_core.data.source import open_source
from blendserve_core.data.stage import stage
from blendserve_core.perf.engine_cost import engine_cost
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.lengths import estimate_lengths
from blendserve_core.plan.planner import make_plan
from blendserve_core.requests import RequestTable
from blendserve_core.shard.supervise import EngineError, run_engine
from blendserve_core.shard.unfinished import load_unfinished
from blendserve_core.text.tokenizer import PromptTokenizer
from schemas.manifest import Progress
from schemas.parameters import EngineOptions, JobParameters, SamplingDefaults
from schemas.shard import EngineSpec

MANNERS = ("brief", "kind", "calm", "fair", "wise", "warm", "bold", "keen")
NUM_REQUESTS, MAX_TOKENS = 6 * len(MANNERS), 200


@pytest.fixture(scope="session")
def shard(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A staged and planned job that takes an engine some seconds: it tells of itself once a second, and is stopped half-way."""
    from tiny_requests import write_requests

    folder = tmp_path_factory.mktemp("shard")
    parameters = JobParameters(
        requests=str(write_requests(folder / "requests.parquet", MANNERS)),
        output=str(folder),
        model=str(tiny_model_folder),
        sampling=SamplingDefaults(max_tokens=MAX_TOKENS, temperature=1.0, ignore_eos=True),
    )
    stage(parameters, open_source(parameters), PromptTokenizer.load(tiny_model_folder), 256, folder / "staged")
    requests = RequestTable.load(folder / "staged")
    tree = build_tree(requests)
    plan = make_plan(requests, tree, estimate_lengths(tree, requests), engine_cost(tiny_model_folder), "depth-first")
    plan.save(folder / "plan")
    return folder


@pytest.fixture
def spec(shard: Path, tiny_model_folder: Path, tmp_path: Path) -> EngineSpec:
    return EngineSpec(
        rank=0,
        staged_folder=str(shard / "staged"),
        plan_folder=str(shard / "plan"),
        output_folder=str(tmp_path / "engine"),
        done_folders=[str(tmp_path / "engine")],
        model_folder=str(tiny_model_folder),
        policy="depth-first",
        dtype="float32",
        seed=0,
        engine=EngineOptions(max_sequences=1, kv_cache_tokens=1024, threads=1),
    )


def outputs(spec: EngineSpec) -> dict[int, list[int]]:
    parts = sorted(Path(spec.output_folder).glob("part-*.parquet"))
    rows = [row for part in parts for row in pq.read_table(part).to_pylist()]
    assert len({row["row"] for row in rows}) == len(rows), "a row was finished twice"
    return {row["row"]: row["output_token_ids"] for row in rows}


@pytest.fixture(scope="session")
def expected(shard: Path, tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[int]]:
    """What an engine gives that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    spec = EngineSpec(
        rank=0,
        staged_folder=str(shard / "staged"),
        plan_folder=str(shard / "plan"),
        output_folder=str(folder),
        done_folders=[str(folder)],
        model_folder=str(tiny_model_folder),
        policy="first-come",
        dtype="float32",
        seed=0,
        engine=EngineOptions(threads=1),
    )
    assert run_engine(spec).num_sequences == NUM_REQUESTS
    return outputs(spec)


class Stopped(Exception):
    """Raised by a listener, as a cancelled flow would."""


def test_an_engine_tells_how_far_it_is(spec: EngineSpec, expected: dict[int, list[int]]) -> None:
    heard: list[Progress] = []
    manifest = run_engine(spec, heard.append)
    assert heard
    assert heard[-1].num_total == manifest.num_sequences == NUM_REQUESTS
    assert manifest.num_output_tokens == MAX_TOKENS * NUM_REQUESTS
    assert not manifest.interrupted
    assert outputs(spec) == expected


def test_an_engine_that_is_told_to_stop_keeps_what_is_done_and_what_is_half_done(
    spec: EngineSpec, expected: dict[int, list[int]]
) -> None:
    def stop_half_way(progress: Progress) -> None:
        if progress.num_running:
            raise Stopped

    # The engine is told while it waits for the disk, more often than not: at a row's end. Others have begun by then.
    staggered = EngineOptions(max_sequences=3, max_step_tokens=16, kv_cache_tokens=1024, threads=1)
    with pytest.raises(Stopped):
        run_engine(spec.model_copy(update={"engine": staggered}), stop_half_way)
    half_done = load_unfinished([Path(spec.output_folder)])
    assert half_done
    for request, token_ids in half_done.items():
        assert token_ids.tolist() == expected[request][: len(token_ids)]
    run_engine(spec)
    assert outputs(spec) == expected


def test_an_engine_that_is_killed_says_so_and_the_next_one_goes_on(spec: EngineSpec, expected: dict[int, list[int]]) -> None:
    def kill(_: Progress) -> None:
        subprocess.run(["pkill", "-KILL", "-f", spec.output_folder], check=True)

    with pytest.raises(EngineError, match="shard 0 was killed by SIGKILL"):
        run_engine(spec, kill)
    run_engine(spec)
    assert outputs(spec) == expected


def test_an_engine_that_cannot_start_shows_the_end_of_its_log(spec: EngineSpec, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no-model-here"):
        run_engine(spec.model_copy(update={"model_folder": str(tmp_path / "no-model-here")}))


def test_a_warm_up_does_not_wait_for_its_stragglers(spec: EngineSpec) -> None:
    manifest = run_engine(spec.model_copy(update={"stop_at_finished": 2}))
    assert 2 <= manifest.num_sequences < NUM_REQUESTS
    assert not manifest.interrupted


def test_an_engine_ends_with_its_parent(spec: EngineSpec) -> None:
    folder = Path(spec.output_folder)
    spec.write(folder / "spec.json")
    code = f"from blendserve_core.shard.supervise import run_engine; from schemas.shard import EngineSpec; " \
        f"from pathlib import Path; run_engine(EngineSpec.read(Path({str(folder / 'spec.json')!r})))"  # fmt: skip
    parent = subprocess.Popen([sys.executable, "-c", code])
    _wait_for(folder / "progress.json")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _wait_for(folder / "manifest.json")
    assert _is_gone(spec)


def _wait_for(path: Path, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear in {timeout_s:.0f} s"
        time.sleep(0.02)


def _is_gone(spec: EngineSpec, timeout_s: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while subprocess.run(["pgrep", "-f", spec.output_folder], check=False, stdout=subprocess.DEVNULL).returncode == 0:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
