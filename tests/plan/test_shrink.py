import numpy as np
import pytest

from blendserve_core.plan.groups import Groups
from blendserve_core.plan.shrink import shrink
from blendserve_core.plan.survival import BIN_PROBABILITY, kaplan_meier_bins


def shrunk_means(samples):
    """Means after shrinkage of groups under one root, from lists of finished lengths; the root's comes first."""
    everything = [length for own in samples for length in own]
    group = np.concatenate([np.zeros(len(everything)), *(np.full(len(own), i + 1) for i, own in enumerate(samples))])
    tokens = np.array(everything * 2, np.int32)
    ones = np.ones(len(tokens))
    bins = kaplan_meier_bins(group.astype(np.int64), tokens, ones.astype(bool), ones, 1_000_000, len(samples) + 1)
    groups = Groups(np.zeros(1, np.int32), np.array([-1] + [0] * len(samples), np.int32))
    shrunk = shrink(groups, bins, np.array([len(everything), *map(len, samples)]))
    assert (np.diff(shrunk, axis=1) >= -1e-9 * shrunk[:, 1:]).all()
    return shrunk @ BIN_PROBABILITY


def test_the_root_keeps_its_distribution():
    assert shrunk_means([[10, 30], [20, 40]])[0] == pytest.approx(25)


def test_a_group_without_samples_takes_its_parents():
    assert shrunk_means([[10, 30], []])[2] == pytest.approx(20)


def test_groups_no_further_apart_than_chance_meet_at_their_parent():
    means = shrunk_means([[10, 90, 50, 70], [15, 95, 55, 75]])
    assert means[1] == pytest.approx(means[0], rel=0.02)
    assert means[2] == pytest.approx(means[0], rel=0.02)


def test_groups_far_apart_keep_their_means():
    means = shrunk_means([[10, 11, 12, 9] * 5, [5000, 6000, 7000, 8000]])
    assert means[1] == pytest.approx(10.5, rel=0.02)
    assert means[2] == pytest.approx(6500, rel=0.05)


def test_a_lone_sample_is_trusted_as_far_as_its_siblings_differ():
    alike = shrunk_means([[50, 60, 70, 40]] * 6 + [[400]])
    unlike = shrunk_means([[50, 60], [5, 6], [900, 800], [7000, 6000], [400]])
    assert alike[7] < unlike[5]
    assert unlike[5] == pytest.approx(400, rel=0.1)
