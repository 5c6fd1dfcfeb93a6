import numpy as np
import pytest

from blendserve_core.plan.survival import BIN_PROBABILITY, capped_moments, kaplan_meier_bins, remaining_tokens


def bins_of(num_tokens, is_finished=None, weight=None, limit=1_000_000):
    size = len(num_tokens)
    is_finished = np.ones(size, bool) if is_finished is None else np.array(is_finished)
    weight = np.ones(size) if weight is None else np.array(weight, float)
    return kaplan_meier_bins(np.zeros(size, np.int64), np.array(num_tokens, np.int32), is_finished, weight, limit, 1)


def naive_kaplan_meier(num_tokens, is_finished):
    """(length, probability) of each event from the textbook product, and what survives them all."""
    survival, events = 1.0, []
    for length in sorted(set(num_tokens)):
        at_risk = sum(n >= length for n in num_tokens)
        num_ended = sum(n == length and f for n, f in zip(num_tokens, is_finished, strict=True))
        events.append((length, survival * num_ended / at_risk))
        survival *= 1 - num_ended / at_risk
    return events, survival


def test_bins_keep_the_mean_of_finished_outputs():
    num_tokens = np.random.default_rng(0).lognormal(4, 1.2, 500).astype(np.int32) + 1
    bins = bins_of(num_tokens)
    assert bins[0] @ BIN_PROBABILITY == pytest.approx(num_tokens.mean())
    assert (np.diff(bins[0]) >= -1e-9).all()


def test_bins_keep_the_second_moment_within_a_few_percent():
    num_tokens = np.random.default_rng(1).lognormal(4, 1.0, 4000).astype(np.int32) + 1
    _, second_moment = capped_moments(bins_of(num_tokens), np.array([10**9]))
    assert second_moment[0] == pytest.approx((num_tokens.astype(float) ** 2).mean(), rel=0.03)


def test_censored_observations_weigh_as_kaplan_and_meier_have_it():
    num_tokens, is_finished = [3, 5, 5, 8, 8, 13, 20, 20], [True, True, False, True, True, False, True, True]
    events, survival = naive_kaplan_meier(num_tokens, is_finished)
    assert survival == pytest.approx(0)
    mean = sum(length * probability for length, probability in events)
    assert bins_of(num_tokens, is_finished)[0] @ BIN_PROBABILITY == pytest.approx(mean)


def test_counting_finished_requests_only_would_be_biased_short():
    lengths = np.random.default_rng(2).geometric(1 / 200, 3000)
    seen = np.minimum(lengths, 150)
    bins = bins_of(seen, lengths <= 150)
    assert lengths[lengths <= 150].mean() < 80
    capped, _ = capped_moments(bins, np.array([150]))
    assert capped[0] == pytest.approx(np.minimum(lengths, 150).mean(), rel=0.02)


def test_what_still_runs_goes_on_ending_at_the_rate_seen_last():
    # None ended beyond the age of 50, two in the 180 tokens of all: 90 more on average.
    mean = bins_of([40, 40, 100], [True, True, False], limit=10_000)[0] @ BIN_PROBABILITY
    assert mean == pytest.approx((40 + 40 + 100 + 100) / 3, rel=0.1)


def test_lengths_without_memory_are_estimated_well_from_their_first_part():
    lengths = np.random.default_rng(2).geometric(1 / 200, 3000)
    bins = bins_of(np.minimum(lengths, 60), lengths <= 60, limit=100_000)
    assert bins[0] @ BIN_PROBABILITY == pytest.approx(200, rel=0.1)


def test_where_all_still_run_any_order_of_magnitude_up_to_the_limit_is_as_likely():
    bins = bins_of([40, 100], [False, False], limit=10_000)[0]
    assert bins[0] == pytest.approx(100, rel=0.1)
    assert bins[-1] == pytest.approx(10_000, rel=0.1)
    assert bins[BIN_PROBABILITY.cumsum().searchsorted(0.5)] == pytest.approx(1000, rel=0.1)
    assert bins @ BIN_PROBABILITY == pytest.approx((10_000 - 100) / np.log(100), rel=0.02)


def test_weights_count_like_repeated_observations():
    assert bins_of([4, 9], weight=[3, 1])[0] == pytest.approx(bins_of([4, 4, 4, 9])[0])


def test_groups_without_observations_have_no_distribution():
    bins = kaplan_meier_bins(np.array([1]), np.array([5], np.int32), np.array([True]), np.ones(1), 9, 3)
    assert np.isnan(bins[0]).all()
    assert np.isnan(bins[2]).all()
    assert (bins[1] == 5).all()


def test_the_remaining_length_is_the_mean_of_those_that_got_as_far():
    bins = bins_of([10] * 16 + [100] * 16)
    remaining = remaining_tokens(bins, np.zeros(3, np.int64), np.array([0, 10, 60]), np.full(3, 1000))
    assert remaining == pytest.approx([55, 90, 40])


def test_a_request_that_outlived_all_others_is_half_way_through_but_ends_at_its_limit():
    bins = bins_of([10, 20])
    remaining = remaining_tokens(bins, np.zeros(3, np.int64), np.array([50, 50, 60]), np.array([1000, 70, 60]))
    assert remaining.tolist() == [50, 20, 0]
