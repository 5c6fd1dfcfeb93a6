"""What a finished job writes for a user of the batch format."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from blendserve_core.data.openai.output import BatchCounts, write_batch_files
from blendserve_core.data.openai.responses import Job as ResponseJob
from blendserve_core.job.job import Job
from blendserve_core.text.tokenizer import PromptTokenizer
from schemas.manifest import Manifest


def write_responses(job: Job, manifest: Manifest, output: Path, errors: Path) -> BatchCounts:
    """Write the output file and the error file of a job whose requests came in the batch format."""
    generations = Path(manifest.generations)
    shared = ResponseJob(
        model=job.parameters.model,
        created=int(generations.stat().st_mtime),
        fingerprint=job.fingerprint,
        token_text=_TokenText(job.model_folder).get,
    )
    return write_batch_files(generations, output, errors, shared)


class _TokenText:
    """Text of single tokens. The tokenizer takes seconds to load, and only log-probabilities need it."""

    def __init__(self, model_folder: Path) -> None:
        self._tokenizer = cache(lambda: PromptTokenizer.load(model_folder))
        self.get = cache(self._text)

    def _text(self, token_id: int) -> str:
        return self._tokenizer().decode([token_id])
