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
        sampling=greedy(np.array(max_tokens, dtype=np.int32), ignore_eos),
    )


def greedy(max_tokens: np.ndarray, ignore_eos: bool = False) -> SamplingColumns:
    num_requests = len(max_tokens)
    zeros, ones = np.zeros(num_requests, dtype=np.float32), np.ones(num_requests, dtype=np.float32)
    return SamplingColumns(
        max_tokens=max_tokens,
        temperature=zeros,
        top_p=ones,
        top_k=np.zeros(num_requests, dtype=np.int32),
        min_p=zeros,
        repetition_penalty=ones,
        presence_penalty=zeros,
        frequency_penalty=zeros,
        rng_key=np.arange(num_requests, dtype=np.uint64),
        ignore_eos=np.full(num_requests, ignore_eos),
        logprobs=np.full(num_requests, -1, dtype=np.int32),
        stop_token_indptr=np.zeros(num_requests + 1, dtype=np.int64),
        stop_token_ids=np.empty(0, dtype=np.int32),
        stop_set=np.zeros(num_requests, dtype=np.int32),
    )
