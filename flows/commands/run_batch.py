"""``blendserve run-batch``: requests and responses in the files of OpenAI's batch API."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, TextIO

from cyclopts import Parameter

from blendserve_core.data.jsonl import JsonlSource
from blendserve_core.data.openai.output import BatchCounts
from blendserve_core.data.source import open_source
from blendserve_core.job.batch_files import write_responses
from blendserve_core.job.job import Job, JobFailed
from blendserve_core.job.report import finished_manifest
from flows.commands.options import DEFAULT_OPTIONS, Fresh, Json, Options, job_parameters
from flows.commands.run import prepare_job, run_job_in_prefect
from schemas.parameters import JobParameters, SamplingDefaults

# What that API gives a chat request that asks for nothing: a random draw, and as many tokens as the context still holds.
API_DEFAULTS = {"temperature": 1.0, "max_tokens": 2**31 - 1}


def run_batch(
    *,
    input_file: Annotated[str, Parameter(name=["--input-file", "-i"])],
    output_file: Annotated[Path, Parameter(name=["--output-file", "-o"])],
    error_file: Path | None = None,
    options: Options = DEFAULT_OPTIONS,
    fresh: Fresh = False,
    json: Json = False,
) -> None:
    """Serve a file of OpenAI batch requests; the whole job runs in Prefect.

    Parameters
    ----------
    input_file
        Requests, one JSON object a line: custom_id, method, url, body.
    output_file
        Responses of the requests that were served. The job's own files lie beside it, in FILE.job.
    error_file
        Responses of the others. Default: the output file's name with .errors before its suffix.
    """
    job = prepare_job(_parameters(input_file, output_file, options), fresh=fresh)
    failure = _failure_of(job)
    manifest = finished_manifest(job)
    if manifest is None:
        raise failure or JobFailed(f"the job in {job.workspace.output} left no manifest")
    errors = error_file or output_file.with_suffix(f".errors{output_file.suffix}")
    counts = write_responses(job, manifest, output_file, errors)
    _show(output_file, errors, counts, sys.stderr if json else sys.stdout)
    if json:
        print(manifest.model_dump_json(indent=2))
    if failure:
        raise failure


def _parameters(input_file: str, output_file: Path, options: Options) -> JobParameters:
    given = options.sampling.model_dump(include=options.sampling.model_fields_set)
    parameters = job_parameters(input_file, f"{output_file}.job", [], options)
    parameters = parameters.model_copy(update={"sampling": SamplingDefaults.model_validate(API_DEFAULTS | given)})
    source = open_source(parameters)
    if not isinstance(source, JsonlSource) or not source.is_batch:
        raise ValueError(f"{input_file}: not in the batch format, whose lines hold custom_id, method, url and body. Use run.")
    return parameters


def _show(output: Path, errors: Path, counts: BatchCounts, stream: TextIO) -> None:
    print(f"{counts.num_served:,} responses  {output}", file=stream)
    if counts.num_errors:
        print(f"{counts.num_errors:,} errors     {errors}", file=stream)


def _failure_of(job: Job) -> JobFailed | None:
    """Run the job. One that ended with too many errors has published them all the same."""
    try:
        run_job_in_prefect(job)
    except JobFailed as error:
        return error
    return None
