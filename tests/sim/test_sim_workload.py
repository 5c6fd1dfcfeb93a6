import numpy as np
import pytest

from blendserve_core.perf.cost import CostModel, density
from blendserve_core.perf.hardware import a100_80gb
from blendserve_core.perf.presets import llama_3_8b
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.sim.lengths import Lengths, mmlu_like
from blendserve_core.sim.mix import PAPER_TRACES, MixTarget
from blendserve_core.sim.workload import EOS_TOKEN_ID, mixed_workload, synthesize


@pytest.fixture
def cost():
    return CostModel(llama_3_8b(), a100_80gb())


def lengths_of(prompts, outputs, groups, prefixes, num_system_tokens=0):
    return Lengths(*(np.array(column, np.int32) for column in (prompts, outputs, groups, prefixes)), num_system_tokens)


@pytest.mark.parametrize("trace", PAPER_TRACES)
def test_the_papers_traces_have_their_density_and_sharing(trace, cost):
    target = PAPER_TRACES[trace]
    workload = mixed_workload(target, 100_000, cost, seed=3)
    requests = workload.requests
    tree = build_tree(requests)
    compute_s = cost.compute_s(tree.end_depth, 0, tree.start_depth).sum()
    compute_s += cost.compute_s(requests.num_prompt_tokens, workload.true_output_tokens, requests.num_prompt_tokens).sum()
    memory_s = cost.memory_s(requests.num_prompt_tokens, workload.true_output_tokens).sum()
    assert requests.num_requests == 100_000
    assert 1 - tree.num_unique_tokens / len(requests.token_ids) == pytest.approx(target.sharing, abs=0.01)
    assert density(compute_s, memory_s) == pytest.approx(target.density, rel=0.03)


def test_a_mix_that_does_not_exist_is_refused(cost):
    with pytest.raises(ValueError, match=r"sharing 0\.95"):
        mixed_workload(MixTarget(1.0, 0.95), 1000, cost, seed=0)


def test_the_same_seed_makes_the_same_workload(cost):
    first, second, other = (mixed_workload(PAPER_TRACES[3], 3000, cost, seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.requests.token_ids, second.requests.token_ids)
    np.testing.assert_array_equal(first.true_output_tokens, second.true_output_tokens)
    assert len(other.requests.token_ids) != len(first.requests.token_ids)


def test_requests_share_what_their_lengths_say():
    grouped = lengths_of([12, 10, 9, 11], [1, 2, 3, 4], [0, 0, 1, -1], [8, 8, 6, 3], num_system_tokens=3)
    other = lengths_of([7], [5], [-1], [3], num_system_tokens=3)
    workload = synthesize([grouped, other], np.random.default_rng(0))
    by_output = {int(d): workload.requests.prompt(i) for i, d in enumerate(workload.true_output_tokens)}

    def shared(one, two):
        length = min(len(by_output[one]), len(by_output[two]))
        return int(np.cumprod(by_output[one][:length] == by_output[two][:length]).sum())

    assert shared(1, 2) == 8
    assert shared(1, 3) == shared(1, 4) == shared(3, 4) == 3
    assert shared(1, 5) == 0
    assert {len(prompt) for prompt in by_output.values()} == {12, 10, 9, 11, 7}


def test_the_request_table_says_nothing_about_true_lengths(cost):
    requests = mixed_workload(PAPER_TRACES[1], 2000, cost, seed=0).requests
    assert len(np.unique(requests.sampling.max_tokens)) == 1
    assert EOS_TOKEN_ID not in requests.token_ids


def test_a_real_model_gets_ids_it_knows_and_prompts_share_what_they_did():
    workload = synthesize([mmlu_like(60, np.random.default_rng(0))], np.random.default_rng(0))
    folded = workload.for_model(1000)
    assert EOS_TOKEN_ID < folded.requests.token_ids.min() <= folded.requests.token_ids.max() < 1000
    assert build_tree(folded.requests).num_unique_tokens == pytest.approx(
        build_tree(workload.requests).num_unique_tokens, rel=1e-3
    )
