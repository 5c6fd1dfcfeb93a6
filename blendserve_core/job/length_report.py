"""How good the plan's estimates of output lengths were, and where they came from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blendserve_core.job.job import Job
from blendserve_core.job.observations import observe_outputs
from blendserve_core.plan.lengths import LengthError, estimate_error
from blendserve_core.plan.plan import Plan
from blendserve_core.requests import RequestTable
from schemas.manifest import LengthSources, Manifest

SOURCES_FILE = "length_sources.json"


def read_sources(plan_folder: Path) -> LengthSources | None:
    """What the plan in this folder knew; None where it does not say."""
    return LengthSources.read_if_whole(plan_folder / SOURCES_FILE)


def actual_lengths(job: Job, requests: RequestTable) -> NDArray[np.int64]:
    """[R] output tokens of the requests that finished; 0 for the others."""
    seen = observe_outputs(requests, job.workspace.engine_folders)
    actual = np.zeros(requests.num_requests, dtype=np.int64)
    actual[seen.request[seen.is_finished]] = seen.num_tokens[seen.is_finished]
    return actual


def length_error(plan: Plan, actual: NDArray[np.int64]) -> LengthError | None:
    """Error of the plan's estimates over all finished outputs; None where there are none."""
    return estimate_error(plan.estimates, actual) if actual.any() else None


def lengths_text(manifest: Manifest) -> str:
    """The same in words."""
    return "\n\n".join(text for text in (_sources_text(manifest.length_sources), _error_text(manifest)) if text)


def _sources_text(sources: LengthSources | None) -> str:
    if sources is None:
        return ""
    named = [
        (sources.num_stated, "requests that state their own"),
        (sources.num_seen, "outputs this job had when it planned"),
        (sources.num_remembered, "outputs of an earlier job over the same rows and model"),
    ]
    known = [f"{count:,} {what}" for count, what in named if count]
    return f"Estimated from {', '.join(known) or 'nothing but `max_tokens`'}."


def _error_text(manifest: Manifest) -> str:
    if manifest.est_bias is None or manifest.est_mape is None:
        return "No output is known to compare the estimates with."
    return (
        f"Bias {manifest.est_bias:+.1%} (estimated over actual tokens in all), mean absolute error of a row's estimate "
        f"{manifest.est_mape:.1%} of its actual length (MAPE)."
    )
