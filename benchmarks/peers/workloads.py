"""The rows that every engine gets: prompts as token ids, and how many tokens to write for each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from blendserve_core.requests import RequestTable, SamplingColumns
from blendserve_core.text.tokenizer import PromptTokenizer

PROMPTS = Path(__file__).parents[3] / "shared" / "data" / "prompts"
REAL = ("mmlu_5shot", "gsm8k_8shot", "mixed_instructions")
NUM_REAL_ROWS = 200
MAX_REAL_OUTPUT_TOKENS = 320  # beyond, a model of this size repeats itself
FIRST_PLAIN_TOKEN = 1000  # below are special tokens and single bytes


@dataclass(frozen=True)
class Workload:
    """``output_lens`` are forced: engines ignore the end-of-text token and stop there."""

    name: str
    prompts: list[list[int]]
    output_lens: list[int]

    @property
    def num_tokens(self) -> int:
        """What tokens per second are counted from: prompts, shared or not, and outputs."""
        return sum(map(len, self.prompts)) + sum(self.output_lens)

    def first(self, num_rows: int) -> Workload:
        return Workload(self.name, self.prompts[:num_rows], self.output_lens[:num_rows])

    def save(self, folder: Path) -> Path:
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps({"prompts": self.prompts, "output_lens": self.output_lens}), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: Path) -> Workload:
        return cls(path.stem, **json.loads(path.read_text(encoding="utf-8")))

    def requests(self, *, ignore_eos: bool = True) -> RequestTable:
        """The same rows as the engine's own table."""
        num_requests, lens = len(self.prompts), np.array(list(map(len, self.prompts)), dtype=np.int32)
        return RequestTable(
            row=np.arange(num_requests),
            sample_index=np.zeros(num_requests, dtype=np.int32),
            prompt_start=np.cumsum(lens, dtype=np.int64) - lens,
            num_prompt_tokens=lens,
            token_ids=np.concatenate(self.prompts).astype(np.int32),
            sampling=SamplingColumns.greedy(num_requests, self.output_lens, ignore_eos=ignore_eos),
        )


def synthetic_mix(vocab_size: int, seed: int = 0) -> Workload:
    """160 evaluation prompts of four subjects (584 shared tokens each, short answers), 64 chats and 24 long outputs, mixed."""
    rng = np.random.default_rng(seed)

    def tokens(num_tokens: int) -> list[int]:
        return rng.integers(FIRST_PLAIN_TOKEN, vocab_size, num_tokens).tolist()

    subjects = [tokens(584) for _ in range(4)]
    rows = [(subjects[i % 4] + tokens(rng.integers(60, 161)), 2) for i in range(160)]
    rows += [(tokens(rng.integers(64, 385)), int(rng.integers(48, 145))) for _ in range(64)]
    rows += [(tokens(rng.integers(44, 105)), int(rng.integers(256, 769))) for _ in range(24)]
    order = rng.permutation(len(rows)).tolist()
    return Workload("synthetic", [rows[i][0] for i in order], [rows[i][1] for i in order])


def real_rows(name: str, tokenizer: PromptTokenizer) -> Workload:
    """The first rows of a prompt file; ``output_lens`` are still the most they may write. ValueError without the file."""
    path = PROMPTS / f"{name}.parquet"
    if not path.is_file():
        raise ValueError(f"{path} is not there")
    rows = pl.read_parquet(path, columns=["messages", "max_tokens"], n_rows=NUM_REAL_ROWS)
    texts = [tokenizer.render(messages) for messages in rows["messages"].to_list()]
    output_lens = rows["max_tokens"].clip(upper_bound=MAX_REAL_OUTPUT_TOKENS).to_list()
    return Workload(name, tokenizer.encode_texts(texts, is_rendered=True), output_lens)
