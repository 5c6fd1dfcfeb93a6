"""Small request tables from plain lists."""

import numpy as np

from blendserve_core.requests import RequestTable, SamplingColumns


def request_table(prompts: list[list[int]], max_tokens: list[int], ignore_eos: bool = False) -> RequestTable:
    num_requests = len(prompts)
    lens = np.array([len(prompt) for prompt in prompts], dtype=np.int32)
    starts = np.concatenate([[0], np.cumsum(lens, dtype=np.int64)])[:num_requests]
    return RequestTable(
        row=np.arange(num_requests),
        sample_index=np.zeros(num_requests, dtype=np.int32),
        prompt_start=starts.astype(np.int64),
        num_prompt_tokens=lens,
        token_ids=np.array([token for prompt in prompts for token in prompt], dtype=np.int32),
        sampling=SamplingColumns.greedy(num_requests, max_tokens, ignore_eos=ignore_eos),
    )
