from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from blendserve_core.perf.cost import CostModel, kv_reads
from blendserve_core.perf.hardware import a100_80gb
from blendserve_core.perf.optimum import WorkloadTotals, practical_optimum_s, reachable_s
from blendserve_core.perf.presets import llama_3_8b
from blendserve_core.perf.rank_bound import OutputWork, reachable_on_ranks_s

ENGINES = ["overlapped", "sequential"]


@pytest.fixture(params=ENGINES)
def cost(request):
    return CostModel(llama_3_8b(), a100_80gb(), request.param)


def totals_of(prompts, outputs):
    """Totals of requests that share nothing."""
    return WorkloadTotals.of(np.zeros(len(prompts), int), prompts, prompts, outputs)


def bound_s(prompts, outputs, cost, num_ranks):
    return reachable_on_ranks_s(totals_of(prompts, outputs), OutputWork.of(prompts, outputs, cost), cost, num_ranks)


def best_partition_s(prompts, outputs, cost, num_ranks):
    """The slowest rank's reachable time, for the best of all partitions."""
    best = np.inf
    for rank in product(range(num_ranks), repeat=len(prompts)):
        parts = [np.array(rank) == r for r in range(num_ranks)]
        best = min(best, max(reachable_s(totals_of(prompts[p], outputs[p]), cost) for p in parts if p.any()))
    return best


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_no_partition_beats_the_bound(cost, num_ranks, seed):
    rng = np.random.default_rng(seed)
    prompts, outputs = rng.integers(20, 50_000, 7), rng.geometric(1e-3, 7) * rng.choice([1, 20], 7)
    least_s = bound_s(prompts, outputs, cost, num_ranks)
    # longest_s also counts the weights that a step with few tokens reads, which reachable_s leaves out.
    floor_s = OutputWork.of(prompts, outputs, cost).longest_s(cost)
    assert least_s <= max(best_partition_s(prompts, outputs, cost, num_ranks), floor_s) * (1 + 1e-9)


def test_one_rank_has_the_reachable_time(cost):
    prompts, outputs = np.array([100, 200]), np.array([3000, 10])
    assert bound_s(prompts, outputs, cost, 1) == reachable_s(totals_of(prompts, outputs), cost)


def test_many_short_outputs_scale_with_the_ranks(cost):
    prompts, outputs = np.full(100_000, 900), np.full(100_000, 60)
    assert bound_s(prompts, outputs, cost, 4) == pytest.approx(bound_s(prompts, outputs, cost, 1) / 4, rel=1e-3)


def test_ranks_that_must_share_the_giants_pay_for_the_steps_of_each():
    cost = CostModel(llama_3_8b(), a100_80gb())
    prompts, outputs = np.full(400, 100), np.full(400, 60_000)
    alone_s = bound_s(prompts, outputs, cost, 1)
    # Memory bounds one rank; on many, none has the work to fill the 60,000 steps that each of them must take.
    assert bound_s(prompts, outputs, cost, 2) == pytest.approx(alone_s / 2, rel=1e-3)
    assert bound_s(prompts, outputs, cost, 64) > 1.1 * alone_s / 64


def test_no_number_of_ranks_outruns_the_longest_output(cost):
    prompts, outputs = np.full(10, 100), np.array([60_000] + [10] * 9)
    reads = float(kv_reads(100, 60_000))
    steps_s = cost.combine(
        60_000 * (cost.weights_s + cost.lm_head_weights_s), 60_000 * cost.decode_fixed_s + cost.kv_token_s * reads
    )
    assert bound_s(prompts, outputs, cost, 1000) == pytest.approx(steps_s)


def test_cascade_counts_a_prompt_as_shared():
    cost = CostModel(llama_3_8b(), a100_80gb())
    prompts, outputs = np.array([5000, 5000]), np.array([100, 50])
    apart, together = (OutputWork.of(prompts, outputs, c) for c in (cost, replace(cost, cascade=True)))
    assert (together.memory_s < apart.memory_s).all()


def test_the_practical_optimum_of_ranks_is_an_equal_share(cost):
    totals = totals_of(np.array([100]), np.array([10]))
    assert practical_optimum_s(totals, cost, 4) == pytest.approx(practical_optimum_s(totals, cost) / 4)
