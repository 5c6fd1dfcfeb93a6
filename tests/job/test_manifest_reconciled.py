"""The job's manifest: what it counts, and that it cannot say what does not add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import Runs

from blendserve_core.job.bounds import time_bounds
from blendserve_core.job.publishing import publish_generations
from blendserve_core.plan.plan import Plan
from blendserve_core.requests import RequestTable
from schemas.manifest import MANIFEST_VERSION, Manifest, StageManifest


@pytest.fixture
def runs(tiny_model_folder: Path, tmp_path: Path) -> Runs:
    path = tmp_path / "requests.parquet"
    pq.write_table(pa.table({"prompt": ["aa", "aa", "", "b", "c"]}), path)
    return Runs(tiny_model_folder, path, tmp_path / "out")


def test_outcomes_are_counted_by_finish_reason_error_and_origin(runs: Runs) -> None:
    manifest = runs.run("one", failing=(3,))
    assert (manifest.num_requests, manifest.num_rows) == (5, 5)
    assert manifest.outcomes == {"stop": 3, "error": 2}
    assert manifest.errors == {"invalid_prompt": 1, "engine_error": 1}
    assert (manifest.num_errors, manifest.num_duplicate_rows, manifest.num_reused_rows) == (2, 1, 0)


def test_tokens_delivered_are_told_from_tokens_computed(runs: Runs) -> None:
    manifest = runs.run("one")
    assert (manifest.num_prompt_tokens, manifest.num_output_tokens, manifest.num_cached_tokens) == (6, 8, 2)
    assert (manifest.num_computed_prompt_tokens, manifest.num_computed_output_tokens) == (4, 6)
    assert manifest.num_served_tokens == 10


def test_the_manifest_says_what_made_the_output(runs: Runs) -> None:
    manifest = runs.run("one")
    assert {"requests", "sampling.seed", "weights", "tokenizer", "code"} <= manifest.fingerprint_parts.keys()
    assert {"blendserve", "torch", "transformers", "python"} <= manifest.versions.keys()
    assert manifest.plan_digest == Plan.load(runs.prepare().workspace.plan).digest()
    assert manifest.version == MANIFEST_VERSION


def test_other_shards_make_another_plan_digest(runs: Runs) -> None:
    before = runs.run("one")
    job = runs.prepare(shards=2)
    assert runs.finish(job, "one").plan_digest != before.plan_digest


def test_the_optimum_takes_the_true_lengths(runs: Runs) -> None:
    manifest = runs.run("one")
    job = runs.prepare()
    requests, plan = RequestTable.load(job.workspace.staged), Plan.load(job.workspace.plan)
    bounds = time_bounds(job, plan, requests, requests.sampling.max_tokens * 0 + 2)
    assert (manifest.optimum_s, manifest.reachable_s) == (bounds.optimum_s, bounds.reachable_s)
    assert 0 < manifest.optimum_s < plan.summary.optimum_s  # planned for the outputs' limit


def test_an_output_that_lacks_input_rows_is_not_published(runs: Runs, tmp_path: Path) -> None:
    job = runs.prepare()
    runs.generate(job, "one")
    staged = job.workspace.staged / "manifest.json"
    StageManifest.read(staged).model_copy(update={"num_requests": 6}).write(staged)
    with pytest.raises(ValueError, match=r"5 of 6 input rows have outcomes.*--fresh"):
        publish_generations(job)
    assert not (tmp_path / "out" / "generations.parquet").exists()


@pytest.mark.parametrize(
    "lost", [{"outcomes": {"stop": 3, "error": 1}}, {"num_rows": 6}, {"num_requests": 6}, {"errors": {"invalid_prompt": 2}}]
)
def test_counts_that_do_not_add_up_are_refused(runs: Runs, lost: dict[str, Any]) -> None:
    whole = runs.run("one").model_dump()
    with pytest.raises(ValueError, match="do not add up"):
        Manifest.model_validate(whole | lost)
