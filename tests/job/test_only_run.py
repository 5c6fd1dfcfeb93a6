"""Two runs on one output: the second is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blendserve_core.job.only_run import OutputBusy, only_run
from blendserve_core.job.run import run_job
from flows.cli import USER_ERROR, call
from schemas.parameters import JobParameters


@pytest.fixture
def parameters(requests_file: Path, tiny_model_folder: Path, tmp_path: Path) -> JobParameters:
    return JobParameters(requests=str(requests_file), output=str(tmp_path / "out"), model=str(tiny_model_folder))


def test_a_second_run_is_refused_and_told_who_is_there(parameters: JobParameters) -> None:
    with only_run(parameters), pytest.raises(OutputBusy, match=rf"out is in use by process {os.getpid()} on .*, since 20"):
        run_job(parameters)


def test_another_output_is_free(parameters: JobParameters, tmp_path: Path) -> None:
    other = parameters.model_copy(update={"output": str(tmp_path / "other")})
    with only_run(parameters), only_run(other):
        assert (tmp_path / "other").exists()


def test_the_command_line_says_so_in_one_line(parameters: JobParameters, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", parameters.requests, "--output", parameters.output, "--model", parameters.model]
    with only_run(parameters):
        assert call(arguments) == USER_ERROR
    assert "is in use by process" in capsys.readouterr().err
