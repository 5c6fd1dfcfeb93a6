from dataclasses import replace

import numpy as np
import pytest

from blendserve_core.perf.cost import CASCADE_READERS, CostModel, causal_pairs, density, kv_reads, num_devices_for
from blendserve_core.perf.hardware import a100_80gb, cpu, h100
from blendserve_core.perf.presets import llama_3_8b, llama_3_70b

# Measured milliseconds of one layer at sequence length 1024, from the paper's Table 1: batch, GEMM, decode attention.
TABLE_1 = [(512, 1.087, 1.317), (768, 1.537, 1.913), (1024, 2.005, 2.515)]


@pytest.fixture
def cost():
    return CostModel(llama_3_8b(), a100_80gb())


@pytest.mark.parametrize(("batch", "gemm_ms", "attention_ms"), TABLE_1)
def test_steps_agree_with_table_1_of_the_paper(cost, batch, gemm_ms, attention_ms):
    layers = cost.model.num_layers
    gemm_s = (cost.step_compute_s(batch, 0, 0) - cost.lm_head_weights_s) / layers
    assert gemm_s * 1e3 == pytest.approx(gemm_ms, rel=0.06)
    assert cost.step_memory_s(batch * 1024) / layers * 1e3 == pytest.approx(attention_ms, rel=0.06)


@pytest.mark.parametrize(
    ("num_prompt_tokens", "num_output_tokens", "sharing", "expected"),
    [pytest.param(2508, 23, 0.01, 33.2, id="azure"), pytest.param(804, 2, 0.8646, 54.91, id="mmlu")],
)
def test_densities_agree_with_the_papers_traces_where_means_decide(
    cost, num_prompt_tokens, num_output_tokens, sharing, expected
):
    compute_s = cost.compute_s(num_prompt_tokens, num_output_tokens, sharing * num_prompt_tokens)
    assert density(compute_s, cost.memory_s(num_prompt_tokens, num_output_tokens)) == pytest.approx(expected, rel=0.1)


def test_openvid_requests_are_memory_intensive_and_burst_requests_are_not(cost):
    num_prompt_tokens, num_output_tokens = np.array([121, 244]), np.array([16384, 27])
    video, burst = density(
        cost.compute_s(num_prompt_tokens, num_output_tokens), cost.memory_s(num_prompt_tokens, num_output_tokens)
    )
    assert video < 0.2
    assert burst > 10


def test_kv_fills_60_gigabytes_beside_llama_3_8b_on_an_a100(cost):
    assert cost.kv_capacity_tokens * cost.model.kv_bytes_per_token == pytest.approx(60e9, rel=1e-3)


def test_small_steps_take_as_long_as_reading_the_weights(cost):
    assert cost.step_compute_s(1, 1, 0) == cost.step_compute_s(32, 1, 0) == pytest.approx(7.8e-3 + 0.59e-3, rel=0.01)


def test_a_step_without_decodes_spends_no_memory_time(cost):
    np.testing.assert_array_equal(cost.step_memory_s(np.array([0, 1])) > 0, [False, True])


def test_cached_tokens_save_their_gemms_and_attention(cost):
    prefix_s = cost.compute_s(300, 0)
    assert cost.compute_s(1000, 20) == pytest.approx(prefix_s + cost.compute_s(1000, 20, 300))


def test_long_prompts_pay_for_the_square_of_their_length(cost):
    assert cost.compute_s(20_000, 0) > 2.2 * cost.compute_s(10_000, 0)


def test_chunks_of_a_prompt_have_the_pairs_of_the_whole():
    assert sum(causal_pairs(end, end - 100) for end in range(100, 1001, 100)) == causal_pairs(1000)


def test_kv_reads_count_every_decode_step():
    assert kv_reads(7, 5) == sum(7 + i for i in range(5))


def test_memory_time_goes_with_the_second_moment(cost):
    lengths = np.array([10.0, 1000.0])
    estimated = cost.memory_s(50, lengths.mean(), (lengths**2).mean())
    assert estimated == pytest.approx(cost.memory_s(50, lengths).mean())
    assert cost.memory_s(50, lengths.mean()) < 0.6 * estimated


def test_tensor_parallel_devices_share_the_work():
    one, two = (CostModel(llama_3_8b(degree), a100_80gb(), interference=0.0) for degree in (1, 2))
    assert two.compute_s(500, 10) == pytest.approx(one.compute_s(500, 10) / 2)
    assert two.memory_s(500, 10) == pytest.approx(one.memory_s(500, 10) / 2)
    assert two.kv_capacity_tokens > 2 * one.kv_capacity_tokens


def test_a_sequential_engine_waits_for_its_all_reduces():
    sequential = CostModel(llama_3_8b(8), a100_80gb(), "sequential")
    overlapped = CostModel(llama_3_8b(8), a100_80gb(), "overlapped", 0.15)
    assert sequential.gemm_token_s > overlapped.gemm_token_s


def test_key_value_heads_are_copied_where_ranks_outnumber_them():
    eight, sixteen = (CostModel(llama_3_70b(degree), a100_80gb()) for degree in (8, 16))
    assert eight.kv_token_s == sixteen.kv_token_s


@pytest.mark.parametrize(("model", "degree"), [(llama_3_8b(), 1), (llama_3_70b(), 8)])
def test_as_many_devices_are_taken_as_leave_most_memory_to_kv(model, degree):
    assert num_devices_for(model, a100_80gb()) == degree


def test_engines_combine_the_two_resources():
    compute_s, memory_s = np.array([3.0, 1.0]), np.array([1.0, 2.0])
    sequential = CostModel(llama_3_8b(), a100_80gb(), "sequential")
    overlapped = CostModel(llama_3_8b(), a100_80gb(), "overlapped", 0.1)
    np.testing.assert_allclose(sequential.combine(compute_s, memory_s), [4.0, 3.0])
    np.testing.assert_allclose(overlapped.combine(compute_s, memory_s), [3.1, 2.1])


def test_density_is_infinite_without_memory_time():
    np.testing.assert_array_equal(density(np.array([1.0, 1.0]), np.array([0.0, 2.0])), [np.inf, 0.5])


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"engine": "parallel"}, "parallel"), ({"interference": 1.5}, "1.5")],
)
def test_settings_out_of_range_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        CostModel(llama_3_8b(), a100_80gb(), **settings)


def test_a_model_larger_than_its_devices_is_refused():
    with pytest.raises(ValueError, match="no room for KV on 1 x a100-80gb"):
        CostModel(llama_3_70b(), a100_80gb())


def test_faster_hardware_takes_less_time():
    request_s = [CostModel(llama_3_8b(), hardware).compute_s(500, 50) for hardware in (h100(), a100_80gb())]
    assert request_s == sorted(request_s)
    assert CostModel(llama_3_8b(), cpu(memory_bytes=64e9)).compute_s(500, 50) > request_s[-1]


def test_without_cascade_every_decode_reads_its_whole_prompt(cost):
    num_prompt_tokens = np.array([3000, 7], np.int32)
    assert cost.prompt_reads(num_prompt_tokens, np.array([2900, 0]), np.array([50, 1])) is num_prompt_tokens


def test_with_cascade_those_who_share_a_prefix_read_it_once_between_them(cost):
    cascade = replace(cost, cascade=True)
    assert 50 * cascade.prompt_reads(3100, 3000, 50) == pytest.approx(3000 + 50 * 100)
    assert cascade.prompt_reads(3100, 3000, 1) == 3100
    assert cascade.prompt_reads(3100, 3000, 0) == 3100


def test_no_more_requests_read_together_than_an_engine_runs(cost):
    cascade = replace(cost, cascade=True)
    most = cascade.prompt_reads(3100, 3000, CASCADE_READERS)
    assert cascade.prompt_reads(3100, 3000, 100 * CASCADE_READERS) == most == pytest.approx(100 + 3000 / CASCADE_READERS)
