"""Plans of staged jobs, made without an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendserve_core.data.generation import Generation
from blendserve_core.data.parts import PartWriter
from blendserve_core.job.job import Job
from blendserve_core.job.planning import preview_plan
from blendserve_core.job.prepare import prepare
from blendserve_core.job.staging import stage_requests
from blendserve_core.job.warm_up import warm_up
from schemas.parameters import JobParameters

NUM_ROWS = 40


@pytest.fixture
def staged_job(tiny_model_folder: Path, tmp_path: Path) -> Any:
    """Stages forty prompts beside the columns it is given."""

    def make(columns: dict[str, list[Any]], **options: Any) -> Job:
        prompts = [f"What is {number}?" for number in range(NUM_ROWS)]
        pq.write_table(pa.table({"prompt": prompts, **columns}), tmp_path / "requests.parquet")
        paths = {
            "requests": str(tmp_path / "requests.parquet"),
            "output": str(tmp_path / "out"),
            "model": str(tiny_model_folder),
        }
        job = prepare(JobParameters.model_validate(paths | options))
        stage_requests(job)
        return job

    return make


def answer(job: Job, num_tokens: dict[int, int]) -> None:
    """Leave outputs of these lengths, by row, where the warm-up leaves its own."""
    with PartWriter(job.workspace.warm_up) as parts:
        for row, length in num_tokens.items():
            parts.append(
                Generation(
                    row=row,
                    sample_index=0,
                    output_text="",
                    output_token_ids=[1] * length,
                    finish_reason="stop",
                    num_prompt_tokens=1,
                    num_cached_tokens=0,
                    num_output_tokens=length,
                )
            )


def test_the_plan_believes_expected_lengths_and_nothing_is_left_to_sample(staged_job: Any) -> None:
    job = staged_job({"expected_output_tokens": list(range(1, NUM_ROWS + 1))})
    assert preview_plan(job).estimates.mean_tokens.tolist() == list(range(1, NUM_ROWS + 1))
    assert warm_up(job) is None


def test_a_column_tells_long_outputs_from_short_ones(staged_job: Any) -> None:
    job = staged_job({"task": ["short", "long"] * (NUM_ROWS // 2)}, group_column="task")
    answer(job, {row: 100 if row % 2 else 4 for row in range(NUM_ROWS // 2)})
    means = preview_plan(job).estimates.mean_tokens
    assert np.all(means[0::2] < 10)
    assert np.all(means[1::2] > 90)


def test_a_group_column_that_is_not_there_ends_the_job_before_its_model_is_looked_for(staged_job: Any) -> None:
    with pytest.raises(ValueError, match="group_column: no column 'tusk'"):
        staged_job({"task": ["a"] * NUM_ROWS}, group_column="tusk", model="no/such-model")
