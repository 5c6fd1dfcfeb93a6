"""Stage: read the rows, render and tokenize the prompts once, part the rows that cannot be served."""

from __future__ import annotations

import json
import shutil

from blendserve_core.data.source import open_source
from blendserve_core.data.stage import stage
from blendserve_core.data.staged_files import MANIFEST_FILE, is_whole
from blendserve_core.job.earlier import earlier_output
from blendserve_core.job.job import Job
from blendserve_core.shard.in_flight import IN_FLIGHT_FILE
from blendserve_core.shard.suspects import SUSPECTS_FILE
from blendserve_core.shard.unfinished import UNFINISHED_FILE
from blendserve_core.text.tokenizer import PromptTokenizer
from schemas.manifest import StageManifest


def stage_requests(job: Job) -> StageManifest:
    """Fill the job's ``staged`` folder, unless an earlier run did. Outcomes that are published already are taken over there."""
    staged = job.workspace.staged
    manifest = StageManifest.read_if_whole(staged / MANIFEST_FILE)
    if manifest is not None and is_whole(staged):
        return manifest
    _forget_numbers(job)
    source = open_source(job.parameters)
    tokenizer = PromptTokenizer.load(job.model_folder)
    return stage(job.parameters, source, tokenizer, max_context_tokens(job), staged, earlier_output(job))


def _forget_numbers(job: Job) -> None:
    """Remove what speaks of requests by their number in a table that was damaged: the next one may leave out other rows."""
    workspace = job.workspace
    for folder in (workspace.plan, workspace.warm_up_plan):
        shutil.rmtree(folder, ignore_errors=True)
    for folder in workspace.engine_folders:
        for name in (UNFINISHED_FILE, IN_FLIGHT_FILE, SUSPECTS_FILE):
            (folder / name).unlink(missing_ok=True)


def max_context_tokens(job: Job) -> int:
    """Most tokens of a prompt with its output: the model's context, or the KV pool where that is smaller."""
    config = json.loads((job.model_folder / "config.json").read_text(encoding="utf-8"))
    context = int(config["max_position_embeddings"])
    return min(context, job.parameters.engine.kv_cache_tokens or context)
