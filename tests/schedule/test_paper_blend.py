from dataclasses import replace

import numpy as np

from blendserve_core.schedule.policies.paper_blend import PaperBlend, RequestProfile
from blendserve_core.schedule.policy import Load, StepOutcome
from blendserve_core.schedule.step import StepResult

KV_TOKENS = 620


def load(running=(), num_outputs=()) -> Load:
    return Load(
        running=np.array(running, dtype=np.int64),
        kv_lens=np.zeros(len(running), dtype=np.int32),
        num_outputs=np.array(num_outputs, dtype=np.int32),
        num_free_pages=100,
        num_pages=100,
        page_size=16,
        num_decode_tokens=0,
        num_prefill_tokens=0,
        num_kv_tokens_read=0,
    )


def policy(num_left: int = 10, num_right: int = 10) -> PaperBlend:
    """Left requests hold 20 tokens on average and have density 4, right ones 60 and 0.1; the root's is 1.4."""
    num = num_left + num_right
    is_left = np.arange(num) < num_left
    prompts, outputs = np.where(is_left, 19, 10).astype(np.int32), np.where(is_left, 2, 100).astype(np.float32)
    return PaperBlend(np.arange(num), profile_of(prompts, outputs, np.where(is_left, 4.0, 0.1), 1.4), KV_TOKENS)


def profile_of(prompts, outputs, density, root_density) -> RequestProfile:
    """Requests that share nothing, each a unit of its own."""
    return RequestProfile(
        num_prompt_tokens=prompts,
        num_own_tokens=prompts,
        est_output_tokens=outputs,
        density=density,
        unit_kv_tokens=prompts + outputs / 2,
        unit_intake=prompts / outputs,
        root_density=root_density,
    )


def admit(blend: PaperBlend) -> list[int]:
    admitted = []
    while (request := blend.next(load(admitted, [0] * len(admitted)))) is not None:
        admitted.append(request)
    return admitted


def finish(blend: PaperBlend, *requests: int) -> None:
    done = np.array(requests, dtype=np.int64)
    result = StepResult(np.zeros(0, dtype=np.int32), 1.0)
    blend.observe(StepOutcome(0, 0, 0, result, done, np.ones(len(done), dtype=np.int32)))


def test_each_side_fills_its_share_of_the_memory():
    admitted = admit(policy(num_left=20))
    # M_L = 620 * (1.4 - 0.1) / (4 - 0.1) = 207: eleven requests of 20 tokens reach it; M_R = 413: seven of 60.
    assert sorted(admitted) == [*range(11), *range(23, 30)]


def test_both_sides_are_admitted_in_turn():
    sides = [request < 10 for request in admit(policy())[:4]]
    assert True in sides
    assert False in sides


def test_a_request_that_ends_is_replaced_from_its_own_side():
    blend = policy(num_left=20)
    admit(blend)
    finish(blend, 0)
    assert blend.next(load([1])) == 11
    assert blend.next(load([1])) is None


def test_sides_of_one_density_share_all_the_memory():
    # 310 tokens each: six requests of 60 reach that.
    assert len(admit(policy(num_left=0, num_right=20))) == 12


def test_a_request_that_holds_more_than_expected_leaves_less_room():
    blend = policy(num_left=0, num_right=20)
    admitted = admit(blend)
    finish(blend, *admitted[8:])
    running = admitted[:8]
    blend.prefill_budget(load(running, [0] * 8)._replace(kv_lens=np.full(8, 80, dtype=np.int32)), 512)
    assert blend.next(load(running)) is None


def test_shared_prompt_tokens_do_not_count():
    prompts, outputs = np.full(40, 610, dtype=np.int32), np.full(40, 20, dtype=np.float32)
    profile = replace(profile_of(prompts, outputs, np.ones(40), 1.0), num_own_tokens=prompts - 600)
    assert len(admit(PaperBlend(np.arange(40), profile, KV_TOKENS))) == 32


def test_a_prompt_larger_than_its_share_does_not_hold_up_its_side():
    prompts, outputs = np.array([500, 10], dtype=np.int32), np.array([2, 100], dtype=np.float32)
    blend = PaperBlend(np.arange(2), profile_of(prompts, outputs, np.array([4.0, 0.1]), 1.4), KV_TOKENS)
    assert sorted(admit(blend)) == [0, 1]


def test_an_empty_engine_takes_a_request_larger_than_any_share():
    profile = profile_of(np.array([5000], dtype=np.int32), np.array([10], dtype=np.float32), np.array([1.0]), 1.0)
    assert PaperBlend(np.arange(1), profile, KV_TOKENS).next(load()) == 0


def test_a_left_request_that_overruns_its_estimate_counts_on_the_right():
    blend = policy(num_left=20)
    admitted = admit(blend)
    blend.prefill_budget(load(admitted, [5 if request == 0 else 0 for request in admitted]), 512)
    assert blend.next(load(admitted)) == 11


def test_requests_that_come_back_are_offered_again():
    blend = policy(num_left=1, num_right=0)
    assert blend.next(load()) == 0
    blend.put_back(0, retracted=True)
    assert blend.num_waiting == 1
    assert blend.next(load()) == 0
