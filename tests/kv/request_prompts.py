"""A request table of prompts, as far as the tree needs it."""

from types import SimpleNamespace

import numpy as np


def table_of(prompts: list[list[int]]):
    lens = np.array([len(prompt) for prompt in prompts], dtype=np.int32)
    return SimpleNamespace(
        prompt_start=np.concatenate([[0], np.cumsum(lens, dtype=np.int64)])[:-1].astype(np.int64),
        num_prompt_tokens=lens,
        token_ids=np.array([token for prompt in prompts for token in prompt], dtype=np.int32),
        num_requests=len(prompts),
    )
