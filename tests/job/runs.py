"""Runs of a job in one folder, one after the other, without an engine: each answers what it has to generate."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from blendserve_core.data.generation import Generation
from blendserve_core.data.parts import PartWriter
from blendserve_core.job.job import Job
from blendserve_core.job.planning import make_job_plan
from blendserve_core.job.prepare import prepare
from blendserve_core.job.publishing import publish_generations
from blendserve_core.job.report import finished_manifest, write_report
from blendserve_core.job.staging import stage_requests
from blendserve_core.requests import RequestTable
from schemas.manifest import Manifest
from schemas.parameters import JobParameters


class Runs:
    """``run("one")`` gives the text "one" to every row that it has to generate, an error to rows in ``failing``."""

    def __init__(self, model: Path, requests: Path, output: Path) -> None:
        self._model, self._requests, self._output = model, requests, output

    def prepare(self, **options: object) -> Job:
        paths = {"requests": str(self._requests), "output": str(self._output), "model": str(self._model)}
        return prepare(JobParameters.model_validate(paths | {"sample_fraction": 0.0} | options))

    def run(self, name: str, failing: tuple[int, ...] = (), **options: object) -> Manifest:
        job = self.prepare(**options)
        return finished_manifest(job) or self.finish(job, name, failing)

    def finish(self, job: Job, name: str, failing: tuple[int, ...] = ()) -> Manifest:
        self.generate(job, name, failing)
        publish_generations(job)
        return write_report(job)

    def generate(self, job: Job, name: str, failing: tuple[int, ...] = ()) -> None:
        stage_requests(job)
        make_job_plan(job)
        requests = RequestTable.load(job.workspace.staged)
        with PartWriter(job.workspace.shard(0)) as parts:
            parts.extend(answer(requests, request, name, failing) for request in range(requests.num_requests))

    def texts(self) -> list[str | None]:
        return pq.read_table(self._output / "generations.parquet")["output_text"].to_pylist()


def answer(requests: RequestTable, request: int, name: str, failing: tuple[int, ...]) -> Generation:
    row, sample_index = int(requests.row[request]), int(requests.sample_index[request])
    num_prompt_tokens = int(requests.num_prompt_tokens[request])
    if row in failing:
        error = {"type": "engine_error", "message": "killed its engine twice", "stage": "generate"}
        return Generation(row, sample_index, None, None, "error", num_prompt_tokens, 0, 0, error=error)
    return Generation(row, sample_index, name, [1, 2], "stop", num_prompt_tokens, 0, 2)
