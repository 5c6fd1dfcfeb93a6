"""Small request tables from plain lists, for the planner's tests."""

import numpy as np

from blendserve_core.requests import RequestTable, SamplingColumns


def table_of(prompts, max_tokens=64, num_samples=1, ignore_eos=False) -> RequestTable:
    """Requests of these prompts, ``num_samples`` of each; the samples of a row share one span of token ids."""
    num_rows = len(prompts)
    lens = np.array([len(prompt) for prompt in prompts], np.int32)
    starts = np.cumsum(lens, dtype=np.int64) - lens
    return RequestTable(
        row=np.repeat(np.arange(num_rows), num_samples),
        sample_index=np.tile(np.arange(num_samples, dtype=np.int32), num_rows),
        prompt_start=np.repeat(starts, num_samples),
        num_prompt_tokens=np.repeat(lens, num_samples),
        token_ids=np.array([token for prompt in prompts for token in prompt], np.int32),
        sampling=SamplingColumns.greedy(num_rows * num_samples, max_tokens, ignore_eos=ignore_eos),
    )
