"""The vector-clock check, and the schedule of an overlapped step under it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from cuda_on_cpu import CPU, attention_setting
from flashinfer_stand_in import stand_in_kernels
from thread_group import on_every_rank
from tiny_models import SIZES, saved_model
from transformers import LlamaConfig

from blendserve_core.engine.cuda.attention import NanoBatchAttention
from blendserve_core.engine.cuda.batch import batch_arrays
from blendserve_core.engine.cuda.check_program import find_races, random_legal_order
from blendserve_core.engine.cuda.ops import FlashInferOps
from blendserve_core.engine.cuda.overlap import NanoBatch, hidden_of, overlapped_program
from blendserve_core.engine.cuda.program import Lane, Program, Recorder, Run, Wait
from blendserve_core.engine.parallel.group import Group, OneRank
from blendserve_core.engine.parallel.weights import load_part
from blendserve_core.schedule.step import StepPlan

NUM_PAGES, PAGE_SIZE = 64, 16


def nothing() -> None:
    pass


def two_lanes(*, is_awaited: bool) -> Program:
    recorder = Recorder()
    recorder.run(Lane.GEMM, "write", nothing, [], ["x"])
    if is_awaited:
        recorder.ordered(Lane.GEMM, Lane.ATTENTION, "written")
    recorder.run(Lane.ATTENTION, "read", nothing, ["x"], [])
    return recorder.program


def test_a_read_that_waits_for_the_write_is_no_race() -> None:
    assert find_races(two_lanes(is_awaited=True)) == []


def test_a_read_that_does_not_wait_is_named_with_what_it_may_overtake() -> None:
    assert find_races(two_lanes(is_awaited=False)) == ["read on attention may run before write on gemm is done with x"]


def test_a_write_must_wait_for_earlier_readers() -> None:
    recorder = Recorder()
    recorder.program = two_lanes(is_awaited=True)
    recorder.run(Lane.GEMM, "overwrite", nothing, [], ["x"])
    assert find_races(recorder.program) == ["overwrite on gemm may run before read on attention is done with x"]


def test_what_one_lane_waited_for_is_known_to_who_waits_for_that_lane() -> None:
    recorder = Recorder()
    recorder.run(Lane.GEMM, "write", nothing, [], ["x"])
    recorder.ordered(Lane.GEMM, Lane.ATTENTION, "written")
    recorder.ordered(Lane.ATTENTION, Lane.REDUCE, "passed on")
    recorder.run(Lane.REDUCE, "read", nothing, ["x"], [])
    assert find_races(recorder.program) == []


def test_an_event_says_nothing_of_what_its_lane_does_later() -> None:
    recorder = Recorder()
    recorder.record(Lane.GEMM, "too early")
    recorder.run(Lane.GEMM, "write", nothing, [], ["x"])
    recorder.wait(Lane.ATTENTION, "too early")
    recorder.run(Lane.ATTENTION, "read", nothing, ["x"], [])
    assert len(find_races(recorder.program)) == 1


def test_a_wait_for_an_event_that_nobody_recorded_is_an_error() -> None:
    recorder = Recorder()
    recorder.wait(Lane.GEMM, "never")
    with pytest.raises(ValueError, match="never, which nobody has recorded"):
        find_races(recorder.program)


def mixed_step(num_new: list[int], contexts: list[int]) -> StepPlan:
    """Sequences with pages of their own; those with one new token decode."""
    counts, contexts_, num = np.array(num_new, np.int32), np.array(contexts, np.int32), len(num_new)
    lens = counts + contexts_
    num_pages = -(-lens // PAGE_SIZE)
    none = np.empty(0, np.int32)
    return StepPlan(
        seq_ids=np.arange(num),
        token_indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        token_ids=np.arange(counts.sum(), dtype=np.int32) % SIZES["vocab_size"],
        context_lens=contexts_,
        page_indptr=np.concatenate([[0], np.cumsum(num_pages)]).astype(np.int32),
        page_indices=np.random.default_rng(0).permutation(NUM_PAGES)[: num_pages.sum()].astype(np.int32),
        last_page_lens=(lens - 1) % PAGE_SIZE + 1,
        is_sampled=np.ones(num, bool),
        num_outputs=(counts == 1).astype(np.int32),
        prefix_nodes=np.full(num, -1, np.int32),
        prefix_lens=np.zeros(num, np.int32),
        finished_seq_ids=np.empty(0, np.int64),
        copy_src_pages=none,
        copy_dst_pages=none,
        copy_lens=none,
    )


STEP = mixed_step(num_new=[1, 1, 1, 1, 9, 20], contexts=[33, 16, 50, 1, 0, 17])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program")
    saved_model(LlamaConfig(**SIZES | {"vocab_size": 96}), path)
    return path


def begun(
    folder: Path, cut: list[list[int]], group: Group, step: StepPlan = STEP
) -> tuple[Program, list[NanoBatch], torch.Tensor]:
    """The program of ``step`` cut so, over a pool with random contents, which is returned too."""
    model = load_part(folder, FlashInferOps(stand_in_kernels()), torch.float32, group)
    setting = attention_setting(model.config, NUM_PAGES, PAGE_SIZE)
    pages = torch.stack([setting.pool.layer(layer) for layer in range(model.config.num_layers)])
    for layer, values in enumerate(torch.randn(pages.shape, generator=torch.Generator().manual_seed(1))):
        setting.pool.layer(layer).copy_(values)
    nano_batches = []
    for name, places in zip("AB", cut, strict=False):
        nano = NanoBatch(name, model, NanoBatchAttention(setting, 64, NUM_PAGES))
        nano.attention.begin(batch_arrays(step, np.array(places), PAGE_SIZE))
        nano_batches.append(nano)
    return overlapped_program(model, nano_batches), nano_batches, setting.pool.layer(model.config.num_layers - 1)


CUTS = {
    "whole": [[0, 1, 2, 3, 4, 5]],
    "chunks on both sides": [[0, 1, 4], [2, 3, 5]],
    "chunks beside decodes": [[4, 5], [0, 1, 2, 3]],
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
def test_every_step_passes_the_check_and_no_wait_can_be_left_out(folder: Path, cut: list[list[int]]) -> None:
    program, _, _ = begun(folder, cut, OneRank())
    assert_minimal(program)


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
def test_so_does_every_step_of_a_tensor_parallel_group(folder: Path, cut: list[list[int]]) -> None:
    programs = on_every_rank(2, lambda group: begun(folder, cut, group)[0])
    assert any(instruction.lane is Lane.REDUCE for instruction in programs[0])
    for program in programs:
        assert_minimal(program)


def assert_minimal(program: Program) -> None:
    assert find_races(program) == []
    waits = [place for place, instruction in enumerate(program) if isinstance(instruction, Wait)]
    assert waits
    for place in waits:
        assert find_races(program[:place] + program[place + 1 :]), f"{program[place]} is not needed"


@pytest.mark.parametrize("cut", list(CUTS.values())[1:], ids=list(CUTS)[1:])
def test_every_legal_order_gives_the_same_bits(folder: Path, cut: list[list[int]]) -> None:
    def result(order: Callable[[Program], list[Run]]) -> tuple[torch.Tensor, torch.Tensor]:
        program, nano_batches, pages = begun(folder, cut, OneRank())
        with torch.inference_mode():
            for run in order(program):
                run.call()
        return hidden_of(nano_batches), pages

    hidden, pages = result(lambda program: [i for i in program if isinstance(i, Run)])
    orders = set()
    for seed in range(8):

        def shuffled(program: Program, seed: int = seed) -> list[Run]:
            runs = list(random_legal_order(program, random.Random(seed)))
            orders.add(tuple(run.name for run in runs))
            return runs

        other_hidden, other_pages = result(shuffled)
        assert torch.equal(other_hidden, hidden)
        assert torch.equal(other_pages, pages)
    assert len(orders) > 4


def hidden_states(folder: Path, step: StepPlan, cut: list[list[int]]) -> torch.Tensor:
    """Of every row of ``step``, in its order."""
    program, nano_batches, _ = begun(folder, cut, OneRank(), step)
    with torch.inference_mode():
        for instruction in program:
            if isinstance(instruction, Run):
                instruction.call()
    places = np.concatenate([row_places(step, part) for part in cut])
    return hidden_of(nano_batches)[torch.from_numpy(np.argsort(places))]


def row_places(step: StepPlan, sequences: list[int]) -> np.ndarray:
    """Rows of ``step`` that some sequences have, as a nano-batch holds them."""
    batch = batch_arrays(step, np.array(sequences), PAGE_SIZE)
    spans = [np.arange(step.token_indptr[s], step.token_indptr[s + 1]) for s in batch.sequences]
    return np.concatenate(spans)


@pytest.mark.parametrize("name", list(CUTS)[1:])
def test_cut_or_whole_a_step_gives_the_same_hidden_states(folder: Path, name: str) -> None:
    whole = hidden_states(folder, STEP, CUTS["whole"])
    torch.testing.assert_close(hidden_states(folder, STEP, CUTS[name]), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_read", [1, 7], ids=["one token", "a chunk"])
def test_a_prefix_computed_in_the_same_step_is_read_behind_its_writer_and_never_before(folder: Path, num_read: int) -> None:
    step = mixed_step(num_new=[1, 1, num_read, 20], contexts=[33, 5, 16, 0])
    reader, writer = step.page_indptr[2], step.page_indptr[3]
    step.page_indices[reader] = step.page_indices[writer]
    whole, sound, early = (hidden_states(folder, step, cut) for cut in ([[0, 1, 2, 3]], [[3, 0], [2, 1]], [[2, 0], [3, 1]]))
    torch.testing.assert_close(sound, whole, atol=1e-5, rtol=1e-5)
    assert (early - whole).abs().max() > 1e-3


def test_the_stand_in_refuses_a_run_without_a_plan(folder: Path) -> None:
    wrapper = stand_in_kernels().attention_wrapper(torch.empty(16, dtype=torch.uint8, device=CPU), "NHD", backend="fa2")
    with pytest.raises(AssertionError, match="plan comes before run"):
        wrapper.run(torch.empty(1, 1, 16), torch.empty(1, 2, 16, 1, 16))
