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
    profile = RequestProfile(
        num_prompt_tokens=np.where(is_left, 19, 10).astype(np.int32),
        est_output_tokens=np.where(is_left, 2, 100).astype(np.float32),
        density=np.where(is_left, 4.0, 0.1),
        root_density=1.4,
    )
    return PaperBlend(np.arange(num), profile, KV_TOKENS)


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
    # M_L = 620 * (1.4 - 0.1) / (4 - 0.1) = 207: ten requests of 20 tokens; M_R = 413: six of 60.
    assert sorted(admitted) == [*range(10), *range(24, 30)]


def test_both_sides_are_admitted_in_turn():
    sides = [request < 10 for request in admit(policy())[:4]]
    assert True in sides
    assert False in sides


def test_a_request_that_ends_is_replaced_from_its_own_side():
    blend = policy(num_left=20)
    admit(blend)
    finish(blend, 0)
    assert blend.next(load([1])) == 10
    assert blend.next(load([1])) is None


def test_one_side_alone_gets_all_the_memory():
    assert len(admit(policy(num_left=0, num_right=20))) == 10


def test_an_empty_engine_takes_a_request_larger_than_any_share():
    profile = RequestProfile(
        np.array([5000], dtype=np.int32), np.array([10], dtype=np.float32), np.array([1.0]), root_density=1.0
    )
    assert PaperBlend(np.arange(1), profile, KV_TOKENS).next(load()) == 0


def test_a_left_request_that_overruns_its_estimate_counts_on_the_right():
    blend = policy(num_left=20)
    admitted = admit(blend)
    blend.prefill_budget(load(admitted, [5 if request == 0 else 0 for request in admitted]), 512)
    assert blend.next(load(admitted)) == 10


def test_requests_that_come_back_are_offered_again():
    blend = policy(num_left=1, num_right=0)
    assert blend.next(load()) == 0
    blend.put_back(0, retracted=True)
    assert blend.num_waiting == 1
    assert blend.next(load()) == 0
