"""How far bfloat16 logits are from float32's: the engine's and transformers' own, on the same real prompts.

    python benchmarks/bf16_distance.py --prompts 24

Every position of every prompt counts. The reference is transformers in float32. Distances are in logits, over the vocabulary.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from real_prompts import real_prompts
from torch import Tensor

from blendserve_core.engine.cpu.attention_times import plain_step
from blendserve_core.engine.cpu.native.choice import choose_kernels
from blendserve_core.engine.load import PAGE_SIZE, make_attention, make_ops
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.folder import resolve_model
from blendserve_core.engine.model.weights import load_decoder
from blendserve_core.schedule.step import Capacity
from blendserve_core.text.tokenizer import PromptTokenizer

Logits = Callable[[list[int]], Tensor]


@dataclass
class Distance:
    """Of logits from the reference's, over all positions and tokens so far."""

    squares: float = 0.0
    num_logits: int = 0
    largest: float = 0.0

    def add(self, found: Tensor, expected: Tensor) -> None:
        difference = (found.float() - expected).abs()
        self.squares += float(difference.double().square().sum())
        self.num_logits += difference.numel()
        self.largest = max(self.largest, float(difference.max()))

    @property
    def rms(self) -> float:
        return (self.squares / self.num_logits) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=24)
    arguments = parser.parse_args()
    folder = resolve_model("demo")
    prompts = [prompt.token_ids for prompt in real_prompts(PromptTokenizer.load(folder), arguments.prompts, 1)]
    reference = logits_of_transformers(folder, torch.float32)
    contenders = {
        "ours": logits_of_engine(folder, max(map(len, prompts))),
        "transformers": logits_of_transformers(folder, torch.bfloat16),
    }
    distances = {name: Distance() for name in contenders}
    for prompt in prompts:
        expected = reference(prompt)
        for name, logits in contenders.items():
            distances[name].add(logits(prompt), expected)
    print(f"{len(prompts)} prompts, {sum(map(len, prompts)):,} positions, distance from float32 in logits")
    for name, distance in distances.items():
        print(f"{name:>12} in bfloat16: RMS {distance.rms:.4f}, largest {distance.largest:.3f}")


def logits_of_transformers(folder: Path, dtype: torch.dtype) -> Logits:
    """Logits [T, V] of every position of a prompt."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)

    @torch.inference_mode()
    def logits(token_ids: list[int]) -> Tensor:
        return model(torch.tensor(token_ids)[None]).logits[0]

    return logits


def logits_of_engine(folder: Path, max_tokens: int) -> Logits:
    """The same from the engine's kernels, the prompt as one step."""
    config = ModelConfig.from_folder(folder)
    kernels = choose_kernels("auto", config, torch.get_num_threads())
    model = load_decoder(folder, make_ops(kernels), torch.bfloat16)
    num_pages = -(-max_tokens // PAGE_SIZE)
    attention = make_attention(kernels, config, Capacity(num_pages, PAGE_SIZE, max_tokens, 1, max_tokens), torch.bfloat16)

    @torch.inference_mode()
    def logits(token_ids: list[int]) -> Tensor:
        step = replace(plain_step(1, len(token_ids)), token_ids=np.array(token_ids, dtype=np.int32))
        attention.begin_step(step)
        return model.logits(model.forward(torch.tensor(token_ids), attention.attend))

    return logits


if __name__ == "__main__":
    main()
