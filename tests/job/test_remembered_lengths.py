"""Output lengths that one job leaves for the next, without an engine."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendserve_core.data.generation import Generation
from blendserve_core.data.parts import PartWriter
from blendserve_core.job import remembered_lengths
from blendserve_core.job.job import Job
from blendserve_core.job.planning import make_job_plan, preview_plan
from blendserve_core.job.prepare import prepare
from blendserve_core.job.remembered_lengths import lengths_path, recall_lengths, remember_lengths
from blendserve_core.job.staging import stage_requests
from blendserve_core.job.warm_up import warm_up
from blendserve_core.requests import RequestTable
from schemas.parameters import JobParameters, SamplingDefaults

NUM_ROWS = 30
LENGTH = 12


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def staged_job(tiny_model_folder: Path, tmp_path: Path) -> Any:
    pq.write_table(pa.table({"prompt": [f"What is {row}?" for row in range(NUM_ROWS)]}), tmp_path / "requests.parquet")

    def make(**sampling: Any) -> Job:
        job = prepare(
            JobParameters(
                requests=str(tmp_path / "requests.parquet"),
                output=str(tmp_path / "out"),
                model=str(tiny_model_folder),
                sampling=SamplingDefaults.model_validate({"max_tokens": 100} | sampling),
            )
        )
        stage_requests(job)
        return job

    return make


def finish(job: Job, finish_reason: Any = "stop") -> None:
    """Answer every row with ``LENGTH`` tokens, and leave their lengths behind."""
    requests = RequestTable.load(job.workspace.staged)
    with PartWriter(job.workspace.shard(0)) as parts:
        for row, sample_index in zip(requests.row.tolist(), requests.sample_index.tolist(), strict=True):
            parts.append(
                Generation(
                    row=row,
                    sample_index=sample_index,
                    output_text="",
                    output_token_ids=[1] * LENGTH,
                    finish_reason=finish_reason,
                    num_prompt_tokens=1,
                    num_cached_tokens=0,
                    num_output_tokens=LENGTH,
                )
            )
    remember_lengths(job)


def recalled(job: Job) -> list[int]:
    return recall_lengths(job, RequestTable.load(job.workspace.staged)).request.tolist()


def test_a_job_with_other_settings_plans_by_the_lengths_of_an_earlier_one_and_samples_nothing(staged_job: Any) -> None:
    finish(staged_job())
    job = staged_job(seed=1)
    assert warm_up(job) is None
    assert make_job_plan(job).estimates.mean_tokens.tolist() == [LENGTH] * NUM_ROWS


def test_rows_that_got_more_samples_are_known_by_their_first(staged_job: Any) -> None:
    finish(staged_job())
    assert recalled(staged_job(n=2, temperature=1.0)) == list(range(0, 2 * NUM_ROWS, 2))


def test_samples_that_are_no_longer_wanted_are_left_aside(staged_job: Any) -> None:
    finish(staged_job(n=3))
    assert recalled(staged_job()) == list(range(NUM_ROWS))


def test_outputs_that_were_cut_short_are_no_help_to_a_job_with_more_room(staged_job: Any) -> None:
    finish(staged_job(max_tokens=LENGTH), finish_reason="length")
    assert recalled(staged_job(max_tokens=100)) == []
    assert len(recalled(staged_job(max_tokens=LENGTH, seed=1))) == NUM_ROWS


def test_rows_that_had_to_go_on_to_their_limit_leave_nothing(staged_job: Any) -> None:
    finish(staged_job(ignore_eos=True), finish_reason="length")
    assert recalled(staged_job()) == []


@pytest.mark.parametrize("content", [b"", b"PAR1 but no more", None], ids=["empty", "garbage", "other columns"])
def test_a_broken_file_is_passed_over_with_a_word_in_the_log(
    staged_job: Any, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    job = staged_job()
    lengths_path(job).parent.mkdir(parents=True)
    pq.write_table(pa.table({"row": ["x"]}), lengths_path(job))
    if content is not None:
        lengths_path(job).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert preview_plan(job).estimates.mean_tokens.min() > LENGTH
    assert str(lengths_path(job)) in caplog.text


def test_a_cache_that_cannot_be_written_fails_no_job(staged_job: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with caplog.at_level(logging.WARNING):
        finish(staged_job())
    assert "not kept" in caplog.text


def test_many_outputs_are_thinned_and_old_files_make_room(staged_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered_lengths, "MAX_OUTPUTS", 10)
    monkeypatch.setattr(remembered_lengths, "MAX_FILES", 1)
    job = staged_job()
    other = job.model_copy(update={"lengths_key": "older"})
    finish(other)
    finish(job)
    assert not lengths_path(other).exists()
    rows = recalled(job)
    assert len(rows) == 10
    assert (rows[0], rows[-1]) == (0, NUM_ROWS - 1)
