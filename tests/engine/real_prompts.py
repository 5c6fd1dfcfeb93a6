"""Real prompts of the families in ../shared/data/prompts, as the demo model's token ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from blendserve_core.requests import RequestTable, SamplingColumns
from blendserve_core.text.tokenizer import PromptTokenizer

PROMPTS = Path(__file__).parents[3] / "shared" / "data" / "prompts"


def shortest_prompts(tokenizer: PromptTokenizer, family: str, num_prompts: int) -> list[list[int]]:
    """The shortest prompts of a family, in file order; a bare question is a conversation of one message."""
    rows = pl.read_parquet(PROMPTS / f"{family}.parquet").to_dicts()
    conversations = [row.get("messages") or [{"role": "user", "content": row["question"]}] for row in rows]
    num_chars = np.array([sum(len(message["content"]) for message in messages) for messages in conversations])
    chosen = np.sort(np.argsort(num_chars, kind="stable")[:num_prompts])
    return [tokenizer.encode_messages(conversations[i]) for i in chosen]


def greedy_table(prompts: list[list[int]], max_tokens: list[int]) -> RequestTable:
    num_requests = len(prompts)
    lens = np.array([len(prompt) for prompt in prompts], dtype=np.int32)
    return RequestTable(
        row=np.arange(num_requests),
        sample_index=np.zeros(num_requests, dtype=np.int32),
        prompt_start=np.cumsum(lens, dtype=np.int64) - lens,
        num_prompt_tokens=lens,
        token_ids=np.concatenate(prompts).astype(np.int32),
        sampling=SamplingColumns.greedy(num_requests, max_tokens),
    )
