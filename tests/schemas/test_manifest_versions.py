"""Manifests that earlier versions left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.manifest import MANIFEST_VERSION, Manifest

VERSION_1: dict[str, Any] = {
    "fingerprint": "0123456789abcdef0123456789abcdef", "model": "demo", "policy": "blend", "dtype": "bfloat16",
    "num_shards": 1, "num_requests": 3, "num_rows": 4, "num_errors": 1, "num_prompt_tokens": 30, "num_cached_tokens": 10,
    "num_output_tokens": 12, "num_retractions": 0, "sharing_ratio": 0.3, "stage_s": 0.1, "warm_up_s": 0.2, "plan_s": 0.01,
    "engine_start_s": 4.0, "generate_s": 2.0, "publish_s": 0.1, "tokens_per_s": 21.0, "length_sources": None,
    "est_bias": 0.1, "est_mape": 0.2, "generations": "out/generations.parquet", "report": "out/report.md",
    "versions": {"blendserve": "0.1.0"},
}  # fmt: skip


def write(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_a_manifest_of_the_first_version_is_read_in_the_keys_of_today(tmp_path: Path) -> None:
    manifest = Manifest.read(write(tmp_path / "manifest.json", VERSION_1))
    assert (manifest.version, manifest.run) == (MANIFEST_VERSION, "0123456789abcdef")
    assert manifest.outcomes == {"stop or length": 3, "error": 1}
    assert (manifest.num_served_tokens, manifest.num_computed_prompt_tokens) == (42, 20)


def test_a_manifest_without_errors_has_none_by_type(tmp_path: Path) -> None:
    manifest = Manifest.read(write(tmp_path / "manifest.json", VERSION_1 | {"num_errors": 0}))
    assert (manifest.outcomes, manifest.errors) == ({"stop or length": 4}, {})


def test_a_manifest_that_was_read_can_be_written_and_read_again(tmp_path: Path) -> None:
    manifest = Manifest.read(write(tmp_path / "manifest.json", VERSION_1))
    manifest.write(tmp_path / "manifest.json")
    assert Manifest.read(tmp_path / "manifest.json") == manifest


def test_a_newer_manifest_is_refused_by_its_version(tmp_path: Path) -> None:
    path = write(tmp_path / "manifest.json", VERSION_1 | {"version": MANIFEST_VERSION + 1})
    with pytest.raises(ValueError, match="reads up to"):
        Manifest.read(path)
