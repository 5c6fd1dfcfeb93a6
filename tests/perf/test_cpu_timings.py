"""Rates are what a machine's timings say they are, and stay usable where timings are noise."""

import math
from dataclasses import asdict, replace

import pytest

from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.cpu_timings import CpuTimings
from blendserve_core.perf.model_spec import ModelSpec

NUM_PARAMETERS = 1_000_000
# One million bfloat16 parameters: 1 ms to read, 2 ms fixed, 10 us per row; 5 us per decode layer, 1 GB/s of KV.
TIMINGS = CpuTimings(
    num_parameters=NUM_PARAMETERS,
    weight_bytes=2 * NUM_PARAMETERS,
    layers=((1, 1e-3), (16, 2e-3 + 16e-5), (256, 2e-3 + 256e-5)),
    prefill=(3e9, 0.1),
    decode=((1e6, 5e-6 + 1e-3), (4e6, 5e-6 + 4e-3)),
)


def test_rates_are_slopes_and_fixed_parts_of_the_timings():
    spec = TIMINGS.hardware(num_cores=2, memory_bytes=8e9)
    assert spec.name == "cpu (measured)"
    assert spec.gemm_flops_per_s == pytest.approx(2 * NUM_PARAMETERS / 1e-5)
    assert spec.gemm_fixed_share == pytest.approx(2.0)
    assert spec.weight_bytes_per_s == pytest.approx(2e9)
    assert spec.attention_flops_per_s == pytest.approx(3e10)
    assert spec.kv_bytes_per_s == pytest.approx(1e9)
    assert spec.decode_layer_fixed_s == pytest.approx(5e-6)
    assert spec.memory_bytes == 8e9


def test_a_cost_model_gives_the_timings_back():
    model = ModelSpec("m", 1, 64, 128, 4, 2, 16, 100, False)
    timings = replace(TIMINGS, num_parameters=model.num_parameters, weight_bytes=2 * model.num_parameters)
    cost = CostModel(model, timings.hardware(2, 8e9), engine="sequential")
    for rows, seconds in timings.layers[1:]:
        assert cost.step_compute_s(rows, 0, 0) - cost.lm_head_weights_s == pytest.approx(seconds)


@pytest.mark.parametrize("many_s", [1e-3, 1e-5], ids=["flat", "falling"])
def test_noise_never_makes_a_token_free_or_a_fixed_part_negative(many_s):
    noisy = replace(TIMINGS, layers=((1, 1e-3), (16, 1e-3), (256, many_s)), decode=((1e6, 1e-3), (4e6, many_s)))
    rates = {name: value for name, value in asdict(noisy.hardware(2, 8e9)).items() if isinstance(value, float)}
    assert all(value >= 0 for value in rates.values())
    assert 0 < rates["gemm_flops_per_s"] < math.inf
    assert 0 < rates["kv_bytes_per_s"] < math.inf
