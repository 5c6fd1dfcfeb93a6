import numpy as np

from blendserve_core.plan.plan import LengthEstimates
from blendserve_core.schedule.policies.kv_forecast import KvForecast, horizon_steps
from blendserve_core.schedule.policies.lengths_seen import LengthsSeen


def forecast(bin_tokens, bin_probability, prompts, max_outputs=None, group=None) -> KvForecast:
    num = len(prompts)
    estimates = LengthEstimates(
        mean_tokens=np.ones(num, dtype=np.float32),
        second_moment=np.ones(num, dtype=np.float32),
        group=np.zeros(num, dtype=np.int32) if group is None else np.array(group, dtype=np.int32),
        bin_tokens=np.array(bin_tokens, dtype=np.float32),
        bin_probability=np.array(bin_probability, dtype=np.float32),
        is_guess=np.zeros(len(bin_tokens), dtype=np.bool_),
    )
    limits = (np.full(num, 1000) if max_outputs is None else np.array(max_outputs)).astype(np.int32)
    lengths = LengthsSeen(estimates, np.arange(num), limits)
    return KvForecast(estimates, lengths, np.array(prompts, dtype=np.int32), limits)


def fits(kv: KvForecast, request: int, limit: float, num_outputs: int = 0) -> bool:
    return kv.fits(request, num_outputs, limit)


def test_the_horizon_starts_now_and_reaches_the_longest_output():
    steps = horizon_steps(1000)
    assert steps[0] == 0
    assert steps[-1] >= 1000 - 1
    assert (np.diff(steps) >= 1).all()


def test_a_request_of_known_length_holds_its_prompt_and_what_it_grows_to():
    kv = forecast([[100]], [1.0], prompts=[50])
    # The last step that the horizon looks at before the end lies within its growth of 12 %.
    assert not fits(kv, 0, 50 + 88)
    assert fits(kv, 0, 50 + 100)


def test_requests_admitted_together_are_seen_to_grow_together():
    kv = forecast([[100]], [1.0], prompts=[0] * 4)
    for request in range(3):
        kv.add(request, 0)
    assert not fits(kv, 3, 4 * 88)
    assert fits(kv, 3, 4 * 100)


def test_a_short_request_fits_before_a_peak_that_comes_later():
    kv = forecast([[500], [5]], [1.0], prompts=[0, 60], group=[0, 1])
    kv.add(0, 0)
    assert fits(kv, 1, 100)
    assert not fits(kv, 1, 50)


def test_a_running_request_that_reached_an_age_ends_at_one_of_the_longer_lengths():
    kv = forecast([[10, 200]], [0.5, 0.5], prompts=[0, 0])
    kv.rebuild(np.array([0]), np.array([50], dtype=np.int32))
    # Alone it is certain to grow on; another of age 0 does so with probability one half.
    assert not fits(kv, 1, 180)
    assert fits(kv, 1, 300)


def test_one_that_outlived_its_group_is_expected_to_run_as_long_again():
    kv = forecast([[10], [10]], [1.0], prompts=[0, 1], group=[0, 1])
    kv.rebuild(np.array([0]), np.array([100], dtype=np.int32))
    assert not fits(kv, 1, 100)
    assert fits(kv, 1, 130)


def test_the_limit_of_a_request_bounds_its_growth():
    kv = forecast([[500]], [1.0], prompts=[10], max_outputs=[20])
    assert fits(kv, 0, 30)


def test_a_new_forecast_forgets_what_was_admitted():
    kv = forecast([[100]], [1.0], prompts=[0, 0])
    kv.add(0, 0)
    assert not fits(kv, 1, 120)
    kv.rebuild(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32))
    assert fits(kv, 1, 120)


def test_what_runs_is_over_before_another_only_where_it_has_less_to_go_than_that_ones_kind_may_take():
    kv = forecast([[100], [400]], [1.0], prompts=[0, 0], group=[0, 1])
    assert kv.is_over_before(0)
    kv.rebuild(np.array([0]), np.array([50], dtype=np.int32))
    assert kv.is_over_before(0)
    kv.rebuild(np.array([1]), np.array([50], dtype=np.int32))
    assert not kv.is_over_before(0)
    assert kv.is_over_before(1)
