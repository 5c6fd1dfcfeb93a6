"""The counter-based generator: exact, uniform, and independent over keys and positions."""

from __future__ import annotations

import numpy as np

from blendserve_core.engine.rng import uniforms

MASK = 2**64 - 1


def scrambled(z: int) -> int:
    """splitmix64's output function in Python's own integers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_numbers_equal_those_computed_with_unbounded_integers() -> None:
    keys, positions = np.array([0, 1, 2**63 + 5, MASK], dtype=np.uint64), np.array([0, 1, 7, 2**31 - 1], dtype=np.int32)
    expected = [
        (scrambled((scrambled(int(key)) + (int(position) + 1) * 0x9E3779B97F4A7C15) & MASK) >> 11) * 2.0**-53
        for key, position in zip(keys, positions, strict=True)
    ]
    assert uniforms(keys, positions).tolist() == expected


def test_a_draw_does_not_depend_on_the_other_rows() -> None:
    keys, positions = np.arange(50, dtype=np.uint64), np.arange(50, dtype=np.int32) * 3
    together = uniforms(keys, positions)
    alone = [uniforms(keys[i : i + 1], positions[i : i + 1])[0] for i in range(50)]
    assert together.tolist() == alone


def test_numbers_are_uniform_over_positions_and_over_keys() -> None:
    many, one = np.arange(100_000), np.zeros(100_000, dtype=np.int64)
    for keys, positions in ((many, one), (one, many)):
        numbers = uniforms(keys.astype(np.uint64), positions.astype(np.int32))
        counts = np.histogram(numbers, bins=100, range=(0.0, 1.0))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 160  # 99 degrees of freedom: passed with probability 0.9999
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.015
