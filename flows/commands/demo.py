"""``blendserve demo``: the job on the demo model, with requests made from Python's own documentation."""

from __future__ import annotations

import sys
from pathlib import Path

from blendserve_core.data.demo import write_demo_requests
from blendserve_core.job.only_run import only_run
from blendserve_core.job.prepare import prepare, start_afresh
from blendserve_core.job.report import finished_manifest
from flows.commands.options import DEFAULT_OPTIONS, Json, Options, job_parameters
from flows.commands.output import show_result
from flows.commands.run import run_job_in_prefect


def demo(*, output: str = "runs/demo", options: Options = DEFAULT_OPTIONS, json: Json = False) -> None:
    """Run the whole job on requests written here; a demo that is finished starts afresh.

    Parameters
    ----------
    output
        Folder for the requests and for what comes of them.
    """
    print("Preparing the demo's requests and its model ...", file=sys.stderr)
    requests = Path(output) / "requests.parquet"
    write_demo_requests(requests)
    parameters = job_parameters(str(requests), output, [], options)
    with only_run(parameters):
        job = prepare(parameters)
        if finished_manifest(job):
            job = start_afresh(job)
    show_result(job, run_job_in_prefect(job), as_json=json)
