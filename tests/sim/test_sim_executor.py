import numpy as np
import pyarrow.parquet as pq
import pytest

from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.hardware import a100_80gb
from blendserve_core.perf.presets import llama_3_8b
from blendserve_core.schedule.step import Capacity, StepPlan
from blendserve_core.sim.executor import SimulatedExecutor, simulated_capacity, step_load
from blendserve_core.sim.steps import StepRecorder

EOS = 2


@pytest.fixture
def cost():
    return CostModel(llama_3_8b(), a100_80gb())


def step_of(*rows, prefix_nodes=None, prefix_lens=None):
    """A step from (seq_id, new tokens, context, is_sampled, num_outputs) rows, each on its own pages of 4 tokens."""
    seq_ids, num_new, context, is_sampled, num_outputs = (np.array(column) for column in zip(*rows, strict=True))
    totals = context + num_new
    num_pages = -(-totals // 4)
    none = np.zeros(0, np.int32)
    return StepPlan(
        seq_ids=seq_ids.astype(np.int64),
        token_indptr=np.concatenate([[0], np.cumsum(num_new)]).astype(np.int32),
        token_ids=np.zeros(num_new.sum(), np.int32),
        context_lens=context.astype(np.int32),
        page_indptr=np.concatenate([[0], np.cumsum(num_pages)]).astype(np.int32),
        page_indices=np.arange(num_pages.sum(), dtype=np.int32),
        last_page_lens=((totals - 1) % 4 + 1).astype(np.int32),
        is_sampled=is_sampled.astype(bool),
        num_outputs=num_outputs.astype(np.int32),
        prefix_nodes=np.array(prefix_nodes or [-1] * len(rows), np.int32),
        prefix_lens=np.array(prefix_lens or [0] * len(rows), np.int32),
        finished_seq_ids=np.zeros(0, np.int64),
        copy_src_pages=none,
        copy_dst_pages=none,
        copy_lens=none,
    )


DECODE_AND_CHUNK = [(0, 1, 100, True, 3), (1, 8, 16, False, 0)]


def executor_of(cost, true_output_tokens, **settings):
    return SimulatedExecutor(cost, np.array(true_output_tokens), EOS, Capacity(64, 4, 64, 8, 256), **settings)


def test_a_sequence_ends_exactly_at_its_true_length(cost):
    executor = executor_of(cost, [3, 1, 5])
    step = step_of((0, 1, 12, True, 1), (0, 1, 12, True, 2), (1, 7, 0, True, 0), (2, 4, 0, False, 0), (2, 4, 4, True, 0))
    np.testing.assert_array_equal(executor.execute(step).token_ids, [0, EOS, EOS, 0])


def test_seconds_come_from_the_cost_model(cost):
    result = executor_of(cost, [9, 9]).execute(step_of(*DECODE_AND_CHUNK))
    assert result.compute_s == cost.step_compute_s(9, 1, 8 * 16 + 36)
    assert result.memory_s == cost.step_memory_s(101)
    assert result.seconds == cost.combine(result.compute_s, result.memory_s)


def test_recomputing_a_retracted_sequence_is_prefill():
    assert step_load(step_of((0, 20, 0, True, 5), (1, 1, 30, True, 1))) == (1, 2, 31, 210)


def test_a_first_prompt_chunk_of_one_token_is_prefill():
    assert step_load(step_of((0, 1, 0, True, 0))) == (0, 1, 0, 1)


def test_cascade_reads_a_shared_prefix_once():
    rows = [(i, 1, 40, True, 2) for i in range(4)]
    step = step_of(*rows, prefix_nodes=[7, 7, 9, -1], prefix_lens=[32, 32, 16, 0])
    assert step_load(step)[2] == 4 * 41
    assert step_load(step, cascade=True)[2] == 4 * 41 - 32


def test_recorded_steps_are_enough_to_recompute_the_time(cost, tmp_path):
    recorder = StepRecorder()
    executor = executor_of(cost, [9, 9], recorder=recorder)
    seconds = sum(executor.execute(step_of(*DECODE_AND_CHUNK)).seconds for _ in range(3))
    recorder.save(tmp_path / "steps.parquet")
    steps = pq.read_table(tmp_path / "steps.parquet").to_pandas()
    tokens = steps.num_prefill_tokens + steps.num_decodes
    compute_s = cost.step_compute_s(tokens.to_numpy(), steps.num_sampled.to_numpy(), steps.prefill_pairs.to_numpy())
    memory_s = cost.step_memory_s(steps.kv_tokens_read.to_numpy())
    assert len(recorder) == 3
    assert cost.combine(compute_s, memory_s).sum() == pytest.approx(seconds)


def test_held_tokens_count_shared_pages_once(cost):
    recorder = StepRecorder()
    step = step_of(*DECODE_AND_CHUNK)
    pages = step.page_indices.copy()
    pages[step.page_indptr[1]] = pages[0]
    shared = StepPlan(**{name: getattr(step, name) for name in StepPlan.__slots__} | {"page_indices": pages})
    executor = executor_of(cost, [9, 9], recorder=recorder)
    executor.execute(step)
    executor.execute(shared)
    np.testing.assert_array_equal(recorder.column("kv_tokens_held"), [101 + 24, 101 + 24 - 4])


def test_steps_are_written_as_csv_too(tmp_path):
    recorder = StepRecorder()
    recorder.save(tmp_path / "steps.csv")
    assert "kv_tokens_held" in (tmp_path / "steps.csv").read_text()


def test_the_end_token_must_differ_from_the_filler(cost):
    with pytest.raises(ValueError, match="eos_token_id is 0"):
        SimulatedExecutor(cost, np.array([1]), 0, simulated_capacity(cost))


def test_capacity_is_what_fits_beside_the_weights(cost):
    capacity = simulated_capacity(cost)
    assert 0 <= cost.kv_capacity_tokens - capacity.num_tokens < capacity.page_size
