"""Real prompts of every family in ../shared/data/prompts as requests, and the engine that serves them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from blendserve_core.engine.load import load_cpu_executor
from blendserve_core.kv.segments import no_segments, shared_segments
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.requests import RequestTable, SamplingColumns
from blendserve_core.run import run_steps
from blendserve_core.schedule.policies.ordered import OrderedAdmission
from blendserve_core.schedule.scheduler import Scheduler
from blendserve_core.text.tokenizer import PromptTokenizer
from schemas.parameters import DtypeName, EngineOptions

PROMPTS = Path(__file__).parents[2] / "shared" / "data" / "prompts"
# Shares of the prompts: many short ones of opposite demand with and without a shared prefix, a few long ones.
FAMILIES = {"mmlu_5shot": 0.3, "gsm8k_8shot": 0.2, "mixed_instructions": 0.3, "mmlu_raw": 0.17, "qmsum_meetings": 0.03}
MAX_PROMPT_TOKENS = 4200
MAX_PROMPT_CHARACTERS = 6 * MAX_PROMPT_TOKENS  # a longer text has more tokens than that for certain: it is not tokenized
RUN_LENGTH = 5  # neighbours in a file share prefixes


@dataclass(frozen=True)
class Prompt:
    family: str
    token_ids: list[int]
    max_tokens: int


@dataclass(frozen=True)
class Served:
    """Output token ids in table order, how often a request was retracted, and CPU seconds without loading."""

    outputs: list[list[int]]
    num_retractions: int
    cpu_s: float


def real_prompts(tokenizer: PromptTokenizer, num_prompts: int, max_tokens: int) -> list[Prompt]:
    """Prompts of all families, in short runs of neighbours from all over each file, each with its own limit or the given."""
    found: list[Prompt] = []
    for family, share in FAMILIES.items():
        rows = pl.read_parquet(PROMPTS / f"{family}.parquet").to_dicts()
        wanted = max(1, round(share * num_prompts))
        prompts = (to_prompt(tokenizer, family, row, max_tokens) for row in rows_in_runs(rows))
        found += islice((prompt for prompt in prompts if prompt is not None), wanted)
    return found


def rows_in_runs(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for start in np.random.default_rng(0).permutation(max(1, len(rows) // RUN_LENGTH)):
        yield from rows[start * RUN_LENGTH : (start + 1) * RUN_LENGTH]


def to_prompt(tokenizer: PromptTokenizer, family: str, row: dict[str, Any], max_tokens: int) -> Prompt | None:
    """None for a prompt that is too long."""
    if "messages" in row:
        if sum(len(message["content"]) for message in row["messages"]) > MAX_PROMPT_CHARACTERS:
            return None
        token_ids = tokenizer.encode_messages(row["messages"])
    else:
        choices = "\n".join(f"{letter}. {choice}" for letter, choice in zip("ABCD", row["choices"], strict=True))
        token_ids = tokenizer.encode_text(f"{row['question']}\n{choices}\nAnswer:")
    fits = 0 < len(token_ids) <= MAX_PROMPT_TOKENS
    return Prompt(family, token_ids, min(max_tokens, row.get("max_tokens") or max_tokens)) if fits else None


def greedy_requests(prompts: list[Prompt], *, ignore_eos: bool = False) -> RequestTable:
    lens = np.array([len(prompt.token_ids) for prompt in prompts], dtype=np.int32)
    limits = [prompt.max_tokens for prompt in prompts]
    return RequestTable(
        row=np.arange(len(prompts)),
        sample_index=np.zeros(len(prompts), dtype=np.int32),
        prompt_start=np.cumsum(lens, dtype=np.int64) - lens,
        num_prompt_tokens=lens,
        token_ids=np.concatenate([prompt.token_ids for prompt in prompts]).astype(np.int32),
        sampling=SamplingColumns.greedy(len(prompts), limits, ignore_eos=ignore_eos),
    )


def serve(
    model_folder: Path,
    requests: RequestTable,
    dtype: DtypeName,
    options: EngineOptions,
    eos_token_ids: tuple[int, ...],
    order: NDArray[np.int64] | None = None,
) -> Served:
    """Generate all requests in ``order`` of admission, by default the table's."""
    planned = np.arange(requests.num_requests) if order is None else order
    executor = load_cpu_executor(model_folder, requests, dtype, options)
    tree, capacity = build_tree(requests), executor.capacity
    is_sharing = options.prefix_sharing
    segments = shared_segments(tree, planned, capacity.page_size) if is_sharing else no_segments(len(planned))
    policy = OrderedAdmission(planned)
    scheduler = Scheduler(requests, planned, segments, tree.request_order, policy, capacity, eos_token_ids)
    started = time.process_time()
    ended = [finished for record in run_steps(scheduler, executor) for finished in record.finished]
    outputs = {finished.request: finished.token_ids.tolist() for finished in ended}
    cpu_s = time.process_time() - started
    return Served([outputs[request] for request in range(len(planned))], scheduler.counters.num_retractions, cpu_s)
