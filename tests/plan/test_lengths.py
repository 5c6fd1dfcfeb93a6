import numpy as np
import pytest
from plan_tables import table_of

from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.lengths import (
    Observations,
    estimate_error,
    estimate_lengths,
    expected_remaining_tokens,
    longest_tokens,
)

CHATS, GIANTS = 600, 40
PROMPTS = [[1, i] for i in range(CHATS)] + [[2, i] for i in range(GIANTS)]


def estimates_of(prompts, observed=None, is_finished=None, max_tokens=100_000, groups=None, expected=None, **columns):
    """``observed`` maps request indices to output tokens."""
    table = table_of(prompts, max_tokens=max_tokens, **columns)
    observations = None
    if observed is not None:
        tokens = np.array(list(observed.values()), np.int32)
        finished = np.ones(len(tokens), bool) if is_finished is None else np.array(is_finished)
        observations = Observations(np.array(list(observed), np.int64), tokens, finished)
    return estimate_lengths(build_tree(table), table, observations, groups, expected)


def chat_and_giant_outputs(num_giants):
    rng = np.random.default_rng(5)
    chats = {int(r): int(n) for r, n in zip(rng.choice(CHATS, 100, False), rng.lognormal(3, 0.8, 100) + 1, strict=True)}
    return chats, {CHATS + r: int(n) for r, n in enumerate(rng.normal(16_000, 4_000, num_giants))}


def test_a_rare_family_of_giants_keeps_its_mean_and_does_not_flood_the_others():
    chats, giants = chat_and_giant_outputs(8)
    estimates = estimates_of(PROMPTS, chats | giants)
    assert estimates.mean_tokens[CHATS + 20] == pytest.approx(np.mean(list(giants.values())), rel=0.05)
    assert estimates.mean_tokens[0] == pytest.approx(np.mean(list(chats.values())), rel=0.05)
    assert estimates.second_moment[0] == pytest.approx(np.mean(np.square(list(chats.values()), dtype=float)), rel=0.2)


def test_a_family_without_samples_takes_its_parents_distribution():
    chats, _ = chat_and_giant_outputs(0)
    estimates = estimates_of(PROMPTS, chats)
    assert estimates.mean_tokens[CHATS] == pytest.approx(estimates.mean_tokens[0], rel=0.01)


def test_families_that_differ_by_chance_only_move_towards_their_parent():
    rng = np.random.default_rng(6)
    prompts = [[family, i] for family in range(20) for i in range(50)]
    observed = {family * 50 + i: int(rng.geometric(1 / 100)) for family in range(20) for i in range(8)}
    own = np.array([np.mean([observed[family * 50 + i] for i in range(8)]) for family in range(20)])
    shrunk = estimates_of(prompts, observed).mean_tokens[49::50]
    assert np.abs(shrunk - 100).mean() < 0.6 * np.abs(own - 100).mean()


def test_second_moments_exceed_squared_means_where_lengths_vary():
    estimates = estimates_of(PROMPTS, chat_and_giant_outputs(8)[0])
    assert estimates.second_moment[0] > 1.3 * estimates.mean_tokens[0] ** 2


def test_every_estimate_is_capped_by_its_rows_limit():
    max_tokens = np.where(np.arange(100) % 2, 30, 1000)
    estimates = estimates_of([[1, i] for i in range(100)], dict.fromkeys(range(0, 20, 2), 200), max_tokens=max_tokens)
    assert estimates.mean_tokens[1::2].tolist() == [30] * 50
    assert estimates.mean_tokens[0::2] == pytest.approx([200] * 50)


def test_an_output_cut_off_at_its_limit_counts_as_at_least_that_long():
    max_tokens = np.where(np.arange(40) < 20, 50, 1000)
    estimates = estimates_of([[1, i] for i in range(40)], dict.fromkeys(range(10), 50), max_tokens=max_tokens)
    assert estimates.mean_tokens[0] == pytest.approx(50)
    assert estimates.mean_tokens[39] == pytest.approx((1000 - 50) / np.log(1000 / 50), rel=0.02)


def test_a_sampled_request_that_still_runs_lengthens_the_estimate():
    prompts = [[1, i] for i in range(40)]
    observed = dict.fromkeys(range(8), 20) | dict.fromkeys(range(8, 12), 400)
    running = [True] * 8 + [False] * 4
    assert estimates_of(prompts, observed, running).mean_tokens[39] > estimates_of(prompts, observed).mean_tokens[39]


def test_rows_that_ignore_the_end_token_are_known_exactly():
    estimates = estimates_of([[1, i] for i in range(30)], {0: 5}, max_tokens=77, ignore_eos=np.arange(30) >= 10)
    assert set(estimates.mean_tokens[10:].tolist()) == {77}
    assert estimates.second_moment[10:] == pytest.approx(77.0**2)
    assert estimates.mean_tokens[1] < 77


def test_expected_lengths_are_believed_where_given():
    expected = np.array([123.0, np.nan, 0, 10**9, 40])
    estimates = estimates_of([[i] for i in range(5)], max_tokens=1000, expected=expected)
    assert estimates.mean_tokens.tolist() == pytest.approx([123, 500, 500, 1000, 40])


def test_without_observations_half_of_the_limit_is_the_prior():
    estimates = estimates_of([[i] for i in range(4)], max_tokens=np.array([10, 200, 200, 3000]))
    assert estimates.mean_tokens == pytest.approx([5, 100, 100, 1500], rel=0.01)
    assert estimates.second_moment[3] == pytest.approx(3000**2 / 3, rel=0.01)
    assert estimates.group[1] == estimates.group[2] != estimates.group[3]


def test_no_observations_at_all_is_the_same_as_none():
    table = table_of([[1], [2]])
    estimates = estimate_lengths(build_tree(table), table, Observations.none())
    assert estimates.mean_tokens.tolist() == [32, 32]


def test_a_column_tells_rows_of_one_subtree_apart():
    column = np.array([0, 1] * 50)
    observed = {i: 500 if i % 2 else 5 for i in range(20)}
    estimates = estimates_of([[1, i] for i in range(100)], observed, groups=column)
    assert estimates.mean_tokens[98] == pytest.approx(5, rel=0.05)
    assert estimates.mean_tokens[99] == pytest.approx(500, rel=0.05)


def test_a_column_of_another_length_is_refused():
    with pytest.raises(ValueError, match="groups has 3 entries for 2 requests"):
        estimates_of([[1], [2]], groups=np.zeros(3))


def test_remaining_tokens_shrink_with_age_and_jump_when_the_short_ones_are_out():
    observed = {i: 10 if i < 12 else 1000 for i in range(16)}
    estimates = estimates_of([[1, i] for i in range(40)], observed)
    requests, limit = np.full(4, 30), np.full(4, 100_000)
    remaining = expected_remaining_tokens(estimates, requests, np.array([0, 5, 10, 900]), limit)
    assert remaining == pytest.approx([257.5, 252.5, 990, 100], rel=0.01)


def test_the_longest_output_of_a_group_is_bounded_by_the_rows_limit():
    estimates = estimates_of([[1, i] for i in range(40)], {i: 10 * (i + 1) for i in range(16)}, max_tokens=150)
    assert longest_tokens(estimates, np.array([150] * 39 + [50]))[[0, 39]].tolist() == [150, 50]


def test_the_error_of_estimates_leaves_out_rows_without_an_output():
    estimates = estimates_of([[i] for i in range(3)], expected=np.array([50, 150, 60]), max_tokens=1000)
    error = estimate_error(estimates, np.array([100, 100, 0]))
    assert (error.bias, error.mape) == (0.0, 0.5)
    assert estimate_error(estimates, np.zeros(3)).mape == 0


def test_observations_of_two_runs_are_joined():
    own = Observations(np.array([3, 1]), np.array([20, 7], np.int32), np.array([True, False]))
    earlier = Observations(np.array([1, 2]), np.array([9, 8], np.int32), np.array([True, True]))
    joined = own.joined_with(earlier.without(own.request))
    assert joined.request.tolist() == [3, 1, 2]
    assert joined.num_tokens.tolist() == [20, 7, 8]
    assert joined.is_finished.tolist() == [True, False, True]


def test_every_output_is_taken_to_have_at_least_one_token():
    assert estimates_of(PROMPTS[:10], max_tokens=1).mean_tokens == pytest.approx(np.ones(10))
