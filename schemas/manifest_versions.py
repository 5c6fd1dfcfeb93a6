"""Manifests of earlier versions, in the keys of today."""

from __future__ import annotations

from typing import Any

MANIFEST_VERSION = 2


def upgraded(content: dict[str, Any]) -> dict[str, Any]:
    """A manifest's content in the current version. Raises ValueError for one that is newer than this program."""
    version = content.get("version", 1 if "run" not in content else MANIFEST_VERSION)
    if version > MANIFEST_VERSION:
        raise ValueError(f"the manifest has version {version}; this program reads up to {MANIFEST_VERSION}. Update it.")
    return _from_1(content) if version == 1 else content


def _from_1(content: dict[str, Any]) -> dict[str, Any]:
    """Version 1 computed every row, did not tell ``stop`` from ``length``, and kept no digests to take rows over by."""
    num_prompt, num_cached, num_output = (content[f"num_{kind}_tokens"] for kind in ("prompt", "cached", "output"))
    num_errors, num_rows = content["num_errors"], content["num_rows"]
    added = {
        "version": MANIFEST_VERSION,
        "run": content["fingerprint"][:16],
        "fingerprint_parts": {},
        "reuse_key": "",
        "num_retries": 0,
        "plan_digest": "",
        "outcomes": _without_zeros({"stop or length": num_rows - num_errors, "error": num_errors}),
        "errors": _without_zeros({"unknown": num_errors}),
        "num_duplicate_rows": 0,
        "num_reused_rows": 0,
        "num_served_tokens": num_prompt + num_output,
        "num_computed_prompt_tokens": num_prompt - num_cached,
        "num_computed_output_tokens": num_output,
        "num_recomputed_tokens": 0,
        "hardware": "",
        "optimum_s": 0.0,
        "reachable_s": 0.0,
        "optimum_share": None,
        "reachable_share": None,
        "row_digests": "",
    }
    return content | added


def _without_zeros(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}
