import numpy as np
import pytest

from blendserve_core.perf.cost import CostModel, density
from blendserve_core.perf.hardware import a100_80gb
from blendserve_core.perf.presets import llama_3_8b
from blendserve_core.sim.lengths import SOURCES, Lengths, resample


@pytest.mark.parametrize(
    ("name", "mean_in", "mean_out", "sharing", "expected_density"),
    [
        ("burst", 244, 27, 0.02, 17.78),
        ("wildchat", 496, 256, 0.19, 2.13),
        ("mmlu", 804, 2, 0.8646, 54.91),
        ("openvid", 121, 16384, 0.0, 0.05),
    ],
)
def test_synthetic_traces_have_the_papers_means_sharing_and_density(name, mean_in, mean_out, sharing, expected_density):
    lengths = SOURCES[name](100_000, np.random.default_rng(0))
    cost = CostModel(llama_3_8b(), a100_80gb())
    prompts, outputs = lengths.num_prompt_tokens, lengths.num_output_tokens
    compute_s = cost.compute_s(prompts, outputs, lengths.num_prefix_tokens).sum()
    assert prompts.mean() == pytest.approx(mean_in, rel=0.02)
    assert outputs.mean() == pytest.approx(mean_out, rel=0.02)
    assert lengths.num_prefix_tokens.sum() / prompts.sum() == pytest.approx(sharing, abs=0.01)
    assert density(compute_s, cost.memory_s(prompts, outputs).sum()) == pytest.approx(expected_density, rel=0.1, abs=0.015)


@pytest.mark.parametrize("name", SOURCES)
def test_prompts_hold_their_prefixes(name):
    lengths = SOURCES[name](2_000, np.random.default_rng(0))
    assert (lengths.num_prefix_tokens <= lengths.num_prompt_tokens).all()
    assert lengths.num_output_tokens.min() >= 1


def test_the_same_seed_draws_the_same_lengths():
    first, second = (SOURCES["burst"](100, np.random.default_rng(7)) for _ in range(2))
    np.testing.assert_array_equal(first.num_output_tokens, second.num_output_tokens)


def test_resampling_uses_every_row_equally_often():
    rows = np.arange(1, 6, dtype=np.int32)
    drawn = resample(Lengths(rows, rows, rows, rows), 12, np.random.default_rng(0))
    assert set(np.bincount(drawn.num_prompt_tokens)[1:]) == {2, 3}
