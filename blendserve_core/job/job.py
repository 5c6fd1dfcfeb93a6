"""A job as every stage gets it: what to do, with which model, and where its files lie. Small, frozen and JSON-able."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from blendserve_core.workspace import Workspace, output_folder
from schemas.manifest import JsonFile
from schemas.parameters import JobParameters


class Job(JsonFile):
    """``fingerprint`` stands for everything that changes an output; finished work is found again under it. It is a digest of
    ``parts``, which are kept to tell what has changed.

    ``lengths_key`` stands for prompts and model alone; under it output lengths are kept for jobs with other settings.
    ``reuse_key`` stands for all but the rows and what each asks for; jobs that have it in common can exchange outcomes.
    """

    parameters: JobParameters
    model_folder: Path
    fingerprint: str
    lengths_key: str
    parts: dict[str, str] = Field(default_factory=dict)
    reuse_key: str = ""
    num_retries: int = 0

    @property
    def workspace(self) -> Workspace:
        return Workspace(output_folder(self.parameters.output), self.fingerprint, self.num_retries)


class JobFailed(Exception):
    """The job ran to its end, but not as asked. Everything that was generated is kept and published."""
