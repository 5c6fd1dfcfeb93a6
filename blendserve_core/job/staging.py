"""Stage: read the rows, render and tokenize the prompts once, part the rows that cannot be served."""

from __future__ import annotations

import json

from blendserve_core.data.source import open_source
from blendserve_core.data.stage import stage
from blendserve_core.job.job import Job
from blendserve_core.text.tokenizer import PromptTokenizer
from schemas.manifest import StageManifest


def stage_requests(job: Job) -> StageManifest:
    """Fill the job's ``staged`` folder, unless an earlier run did."""
    finished = job.workspace.staged / "manifest.json"
    if finished.exists():
        return StageManifest.read(finished)
    source = open_source(job.parameters)
    tokenizer = PromptTokenizer.load(job.model_folder)
    return stage(job.parameters, source, tokenizer, max_context_tokens(job), job.workspace.staged)


def max_context_tokens(job: Job) -> int:
    """Most tokens of a prompt with its output: the model's context, or the KV pool where that is smaller."""
    config = json.loads((job.model_folder / "config.json").read_text(encoding="utf-8"))
    context = int(config["max_position_embeddings"])
    return min(context, job.parameters.engine.kv_cache_tokens or context)
