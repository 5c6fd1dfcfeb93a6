"""What an idle engine takes over from a busy one, on disk and in real processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendserve_core.data.parts import finished_keys
from blendserve_core.data.source import open_source
from blendserve_core.data.stage import stage
from blendserve_core.perf.engine_cost import engine_cost
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.lengths import estimate_lengths
from blendserve_core.plan.plan import FIXED, Plan
from blendserve_core.plan.planner import make_plan
from blendserve_core.requests import RequestTable
from blendserve_core.shard.supervise import run_engine
from blendserve_core.shard.work import Work
from blendserve_core.text.tokenizer import PromptTokenizer
from schemas.parameters import EngineOptions, JobParameters, SamplingDefaults
from schemas.shard import EngineSpec

NUM_REQUESTS = 80


@pytest.fixture
def job(tiny_model_folder: Path, tmp_path: Path) -> Path:
    """Eighty prompts that share nothing, planned for two shards."""
    rng = np.random.default_rng(0)
    prompts = ["".join(chr(97 + letter) for letter in rng.integers(0, 26, 12)) for _ in range(NUM_REQUESTS)]
    pq.write_table(pa.table({"prompt": prompts}), tmp_path / "requests.parquet")
    parameters = JobParameters(
        requests=str(tmp_path / "requests.parquet"),
        output=str(tmp_path),
        model=str(tiny_model_folder),
        sampling=SamplingDefaults(max_tokens=40, ignore_eos=True),
    )
    stage(parameters, open_source(parameters), PromptTokenizer.load(tiny_model_folder), 256, tmp_path / "staged")
    requests = RequestTable.load(tmp_path / "staged")
    tree = build_tree(requests)
    plan = make_plan(requests, tree, estimate_lengths(tree, requests), engine_cost(tiny_model_folder), "blend", num_shards=2)
    plan.save(tmp_path / "plan")
    return tmp_path


def spec_of(job: Path, rank: int, model: Path) -> EngineSpec:
    return EngineSpec(
        rank=rank,
        staged_folder=str(job / "staged"),
        plan_folder=str(job / "plan"),
        output_folder=str(job / f"shard-{rank}"),
        done_folders=[str(job / "shard-0"), str(job / "shard-1")],
        model_folder=str(model),
        policy="blend",
        dtype="float32",
        seed=0,
        engine=EngineOptions(max_sequences=8, kv_cache_tokens=2048, threads=1),
    )


def finished_rows(job: Path, *ranks: int) -> list[int]:
    return sorted(finished_keys([job / f"shard-{rank}" for rank in ranks])[0].tolist())


def fixed_rows(job: Path, rank: int) -> list[int]:
    return sorted(Plan.load(job / "plan").shards[rank].in_packages([FIXED]).tolist())


def take_all(work: Work) -> list[np.ndarray]:
    taken = []
    for is_early in (True, False):
        while (more := work.more(is_early=is_early)) is not None:
            taken.append(more)
    return taken


def test_an_idle_engine_takes_all_that_may_move_and_the_busy_one_keeps_the_rest(job: Path, tiny_model_folder: Path) -> None:
    run_engine(spec_of(job, 1, tiny_model_folder))
    assert finished_rows(job, 1) == sorted(set(range(NUM_REQUESTS)) - set(fixed_rows(job, 0)))
    run_engine(spec_of(job, 0, tiny_model_folder))
    assert finished_rows(job, 0) == fixed_rows(job, 0)


def test_a_thief_that_dies_finishes_what_it_took_when_it_comes_back(job: Path, tiny_model_folder: Path) -> None:
    thief = spec_of(job, 1, tiny_model_folder)
    take_all(Work(thief))
    run_engine(spec_of(job, 0, tiny_model_folder))
    assert finished_rows(job, 0) == fixed_rows(job, 0)
    run_engine(thief)
    assert finished_rows(job, 0, 1) == list(range(NUM_REQUESTS))


def test_work_that_others_claimed_is_not_offered(job: Path, tiny_model_folder: Path) -> None:
    thief = Work(spec_of(job, 1, tiny_model_folder))
    taken = thief.more(is_early=False)
    owner = Work(spec_of(job, 0, tiny_model_folder))
    everything = [thief.order, taken, owner.order, *take_all(owner)]
    assert sorted(np.concatenate(everything).tolist()) == list(range(NUM_REQUESTS))


def test_everything_that_may_come_is_known_from_the_start(job: Path, tiny_model_folder: Path) -> None:
    work = Work(spec_of(job, 0, tiny_model_folder))
    assert sorted(np.concatenate([work.order, *take_all(work)]).tolist()) == sorted(work.may_come.tolist())
