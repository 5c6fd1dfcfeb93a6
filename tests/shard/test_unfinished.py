"""Half-done outputs are read back as they were, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from blendserve_core.shard.unfinished import UNFINISHED_FILE, load_unfinished, save_unfinished


def save(folder: Path, **outputs: list[int]) -> Path:
    folder.mkdir(exist_ok=True)
    save_unfinished(folder, {int(name[1:]): np.array(tokens, dtype=np.int32) for name, tokens in outputs.items()})
    return folder


def load(*folders: Path) -> dict[int, list[int]]:
    return {request: tokens.tolist() for request, tokens in load_unfinished(list(folders)).items()}


def test_of_two_versions_of_an_output_the_longer_counts(tmp_path: Path) -> None:
    one, two = save(tmp_path / "one", r3=[1, 2], r5=[7]), save(tmp_path / "two", r3=[1, 2, 9], r8=[4])
    assert load(one, two, tmp_path / "absent") == {3: [1, 2, 9], 5: [7], 8: [4]}


def test_nothing_unfinished_leaves_no_file(tmp_path: Path) -> None:
    save(save(tmp_path, r1=[2]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("share_left", [0.0, 0.5, 0.99])
def test_a_file_that_is_cut_short_is_passed_over(tmp_path: Path, share_left: float) -> None:
    path = save(tmp_path, r1=[2] * 50) / UNFINISHED_FILE
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share_left)])
    assert load(tmp_path) == {}
