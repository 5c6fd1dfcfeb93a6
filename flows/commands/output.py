"""What a person sees when a job is done."""

from __future__ import annotations

import sys

from blendserve_core.job.job import Job
from blendserve_core.job.outputs import sample_texts
from blendserve_core.text.printable import printable
from blendserve_core.workspace import is_remote
from schemas.manifest import Manifest

SHOWN_CHARACTERS = 300


def show_result(job: Job, manifest: Manifest, *, as_json: bool) -> None:
    """Print where everything is; with ``as_json`` that goes to standard error, and the manifest to standard output."""
    print(_summary(job, manifest), file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print(manifest.model_dump_json(indent=2))


def _summary(job: Job, manifest: Manifest) -> str:
    rows = [f"  row {number}: {_shorten(text)}" for number, text in sample_texts(manifest, num_rows=3)]
    return "\n".join(
        [
            "",
            f"{manifest.num_rows:,} rows, {manifest.num_errors:,} errors, {manifest.tokens_per_s:,.0f} tokens/s",
            *rows,
            f"generations  {manifest.generations}",
            f"manifest     {job.workspace.manifest}",
            f"report       {manifest.report}",
            *([f"copied to    {job.parameters.output}"] if is_remote(job.parameters.output) else []),
        ]
    )


def _shorten(text: str) -> str:
    return printable(" ".join(text.split()), SHOWN_CHARACTERS)
