import numpy as np
import pytest

from blendserve_core.perf.cost import CostModel, kv_reads
from blendserve_core.perf.hardware import a100_80gb
from blendserve_core.perf.presets import llama_3_8b
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.sim.lengths import Lengths
from blendserve_core.sim.simulate import Settings, simulate
from blendserve_core.sim.unique_reads import least_kv_reads
from blendserve_core.sim.workload import synthesize

ROOMY = 10**9


@pytest.fixture
def workload():
    """Forty requests under a shared prompt of 3,000 tokens that decode for 100 steps each."""
    column = [np.full(40, value, np.int32) for value in (3_010, 100, 0, 3_000)]
    return synthesize([Lengths(*column)], np.random.default_rng(0))


def test_a_shared_prompt_is_read_once_a_step(workload):
    tree = build_tree(workload.requests)
    own = float(kv_reads(10, 100))
    assert least_kv_reads(tree, workload.true_output_tokens, ROOMY) == pytest.approx(40 * own + 3_000 * 100)


def test_what_does_not_fit_together_reads_the_shared_prompt_again(workload):
    tree = build_tree(workload.requests)
    own = float(kv_reads(10, 100))
    room_for_few = 100
    expected = 40 * own + 3_000 * 40 * own / room_for_few
    assert least_kv_reads(tree, workload.true_output_tokens, room_for_few) == pytest.approx(expected)


def test_prompts_that_share_nothing_are_read_in_full():
    lengths = Lengths(*(np.array(column, np.int32) for column in ([50, 70], [5, 9], [-1, -1], [0, 0])))
    workload = synthesize([lengths], np.random.default_rng(0))
    tree = build_tree(workload.requests)
    reads = kv_reads(workload.requests.num_prompt_tokens, workload.true_output_tokens).sum()
    assert least_kv_reads(tree, workload.true_output_tokens, ROOMY) == pytest.approx(reads)


def test_yardsticks_count_the_reads_that_the_executor_counts(workload):
    full, cascade = (
        simulate(workload, CostModel(llama_3_8b(), a100_80gb(), cascade=on), Settings(lengths="true")) for on in (False, True)
    )
    assert cascade.tm_s < full.tm_s
    assert cascade.t_reachable_s < full.t_reachable_s
    assert cascade.fraction_of_reachable <= 1
