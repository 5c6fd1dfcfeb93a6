"""What ``run``, ``plan`` and ``demo`` share on the command line: the options of a job, taken from the schema itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from cyclopts import Parameter, default_name_transform

from schemas.parameters import EngineOptions, JobOptions, JobParameters, SamplingDefaults

SHORT_NAMES = {"model_revision": "revision", "dataset_split": "split", "dataset_streaming": "streaming"}


def _option_name(field: str) -> str:
    return default_name_transform(SHORT_NAMES.get(field, field))


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """Every option of a job under its own name, whichever group of the schema it belongs to."""

    job: Annotated[JobOptions, Parameter(name="*", name_transform=_option_name)] = field(default_factory=JobOptions)
    sampling: Annotated[SamplingDefaults, Parameter(name="*")] = field(default_factory=SamplingDefaults)
    engine: Annotated[EngineOptions, Parameter(name="*")] = field(default_factory=EngineOptions)


Columns = Annotated[
    list[str], Parameter(name="--column", negative="", help="Name of a column in your data, for example prompt=question")
]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print the result as JSON, last on standard output")]
Fresh = Annotated[bool, Parameter(name="--fresh", negative="", help="Forget what an earlier run of this job finished")]

DEFAULT_OPTIONS = Options()


def job_parameters(requests: str, output: str, columns: list[str], options: Options) -> JobParameters:
    """Put a job's parameters together. Raises ValueError for a column not of the form ours=yours (ours= leaves it unused)."""
    return JobParameters(
        requests=requests,
        output=output,
        columns=_column_names(columns),
        sampling=options.sampling,
        engine=options.engine,
        **dict(options.job),
    )


def _column_names(columns: list[str]) -> dict[str, str]:
    pairs = [column.partition("=") for column in columns]
    for column, (ours, equals, _) in zip(columns, pairs, strict=True):
        if not (ours and equals):
            raise ValueError(f"--column takes OURS=YOURS, for example prompt=question, not {column!r}")
    return {ours: yours for ours, _, yours in pairs}
