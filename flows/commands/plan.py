"""``blendserve plan``: what a job would cost, before an engine is started."""

from __future__ import annotations

import json as json_module
import tempfile

from blendserve_core.job.only_run import only_run
from blendserve_core.job.planning import preview_plan
from blendserve_core.job.prepare import prepare
from blendserve_core.job.staging import stage_requests
from blendserve_core.plan.describe import describe
from flows.commands.options import DEFAULT_OPTIONS, Columns, Json, Options, job_parameters


def plan(
    requests: str,
    /,
    *,
    output: str | None = None,
    column: Columns | None = None,
    options: Options = DEFAULT_OPTIONS,
    json: Json = False,
) -> None:
    """Stage and plan, without Prefect and without an engine.

    Parameters
    ----------
    requests
        Parquet file, folder, glob or URI; or a Hugging Face dataset (hub id or saved folder).
    output
        The job's folder, so that a later run finds the staged requests there. Without it nothing is kept.
    """
    with tempfile.TemporaryDirectory(prefix="blendserve-plan-") as scratch:
        parameters = job_parameters(requests, output or scratch, column or [], options)
        with only_run(parameters):
            job = prepare(parameters)
            stage_requests(job)
            made = preview_plan(job)
    print(json_module.dumps(made.as_dict(), indent=2) if json else describe(made))
