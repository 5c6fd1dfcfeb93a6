import numpy as np
import pytest
from plan_tables import table_of

from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.sample import choose_sample


def sample_of(prompts, fraction, seed=0, groups=None, **columns):
    table = table_of(prompts, **columns)
    return choose_sample(build_tree(table), table, fraction, seed, groups)


def family(prefix, size, first=0):
    return [[*prefix, first + i, i % 7] for i in range(size)]


def test_a_rare_family_gets_eight_samples():
    prompts = family([1, 1], 3000) + family([2, 2], 20)
    sample = sample_of(prompts, 0.01)
    assert (sample >= 3000).sum() >= 8
    assert 30 <= (sample < 3000).sum() <= 40


def test_a_small_job_samples_a_tenth_at_most():
    prompts = [[family_id, family_id, i] for family_id in range(50) for i in range(6)]
    assert 1 <= len(sample_of(prompts, 0.01)) <= 30


@pytest.mark.parametrize("num_requests", [1, 2, 5, 9])
def test_a_tiny_job_samples_one_row(num_requests):
    assert len(sample_of([[i, 3] for i in range(num_requests)], 0.01)) == 1


def test_no_fraction_and_no_requests_sample_nothing():
    assert len(sample_of([[1], [2]], 0.0)) == 0
    assert len(sample_of([], 0.5)) == 0


def test_the_whole_fraction_samples_every_request_once():
    assert sample_of(family([1], 40), 1.0).tolist() == list(range(40))


def test_a_seed_gives_the_same_sample_and_another_seed_another():
    prompts = family([1], 500)
    assert sample_of(prompts, 0.1, seed=4).tolist() == sample_of(prompts, 0.1, seed=4).tolist()
    assert sample_of(prompts, 0.1, seed=4).tolist() != sample_of(prompts, 0.1, seed=5).tolist()


def test_a_group_is_sampled_evenly_over_its_subtree():
    prompts = [[1, 1, i // 5, i % 5] for i in range(500)]
    sample = sample_of(prompts, 0.1)
    assert np.bincount(sample // 50, minlength=10).tolist() == [5] * 10


def test_rows_of_known_length_are_left_out():
    is_known = np.arange(200) % 2 == 0
    sample = sample_of(family([1], 200), 0.2, ignore_eos=is_known)
    assert len(sample) == 20
    assert not is_known[sample].any()


def test_rows_that_say_their_length_need_no_sample():
    table = table_of(family([1], 200))
    expected = np.where(np.arange(200) % 2 == 0, 30, 0)
    sample = choose_sample(build_tree(table), table, 0.2, 0, expected_output_tokens=expected)
    assert len(sample) == 20
    assert not expected[sample].any()


def test_every_value_of_a_column_is_sampled():
    column = np.where(np.arange(2000) < 1980, "common", "rare")
    sample = sample_of(family([1], 2000), 0.02, groups=column)
    assert (sample >= 1980).sum() >= 8


def test_in_a_small_job_every_value_of_a_column_gets_a_sample():
    column = np.array(["short"] * 16 + ["middling"] * 5 + ["long"] * 3)
    sample = sample_of(family([1], 24), 0.01, groups=column)
    assert sorted(column[sample]) == ["long", "middling", "short"]


def test_a_column_of_distinct_values_does_not_make_the_sample_the_job():
    assert len(sample_of(family([1], 300), 0.01, groups=np.arange(300))) <= 30


def test_a_fraction_that_is_none_is_refused():
    with pytest.raises(ValueError, match="sample fraction"):
        sample_of([[1]], 1.5)
