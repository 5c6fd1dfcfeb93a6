"""Whether the engine writes in float32 what transformers writes, token by token, in whatever way the requests are served.

    python benchmarks/equality.py --prompts 200 --reference runs/equality.json

Real prompts of all families, greedy, one after the other in transformers and in several ways in the engine. Where two tokens
are all but equally likely, rounding decides: a first difference at a gap of logits below TIE_LOGITS is listed as a near tie,
any other as wrong; what follows in such a row cannot be compared. The exit status is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from real_prompts import Prompt, Served, greedy_requests, real_prompts, serve

from blendserve_core.engine.cpu.native import grouping
from blendserve_core.engine.model.folder import resolve_model
from blendserve_core.requests import RequestTable
from blendserve_core.text.tokenizer import PromptTokenizer
from schemas.parameters import EngineOptions

# Float32 logits of this model differ by some 1e-4 between two orders of summation.
TIE_LOGITS = 1e-3


class Engine:
    """The ways in which the requests are served. Each gives the same tokens."""

    def __init__(self, model_folder: Path, requests: RequestTable, eos_token_ids: tuple[int, ...]) -> None:
        self._model_folder, self._requests, self._eos_token_ids = model_folder, requests, eos_token_ids
        longest = int((requests.num_prompt_tokens + requests.sampling.max_tokens).max())
        self.ways: dict[str, Callable[[], Served]] = {
            "together": lambda: self._serve(),
            "one at a time": lambda: self._serve(max_sequences=1),
            "shuffled": lambda: self._serve(shuffle=True),
            "nothing shared": lambda: self._serve(prefix_sharing=False),
            "in chunks of 64": lambda: self._serve(max_step_tokens=64, max_sequences=48),
            "retracted": lambda: self._serve(kv_cache_tokens=longest + 64, max_step_tokens=512),
            "always cascade": lambda: self._cascade(),
            "torch kernels": lambda: self._serve(kernels="torch"),
        }

    def _serve(self, *, shuffle: bool = False, **options: Any) -> Served:
        order = np.random.default_rng(0).permutation(self._requests.num_requests) if shuffle else None
        return serve(self._model_folder, self._requests, "float32", EngineOptions(**options), self._eos_token_ids, order)

    def _cascade(self) -> Served:
        """Shared prefixes are read once whether that pays or not."""
        with patch.object(grouping, "shared_readers", lambda step, _costs: grouping.prefix_readers(step)):
            return self._serve()


class Reference:
    """transformers in float32, one prompt at a time."""

    def __init__(self, model_folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)

    @torch.inference_mode()
    def generate(self, prompt: Prompt) -> list[int]:
        token_ids = torch.tensor(prompt.token_ids)[None]
        options = {"do_sample": False, "max_new_tokens": prompt.max_tokens}
        generated = self._model.generate(token_ids, attention_mask=torch.ones_like(token_ids), **options)
        return generated[0, len(prompt.token_ids) :].tolist()

    @torch.inference_mode()
    def gap(self, context: list[int], better: int, worse: int) -> float:
        """Difference of two tokens' logits after ``context``."""
        logits = self._model(torch.tensor(context)[None], logits_to_keep=1).logits[0, -1]
        return float(logits[better] - logits[worse])


def main() -> int:
    arguments = parse_arguments()
    model_folder = resolve_model("demo")
    tokenizer = PromptTokenizer.load(model_folder)
    prompts = real_prompts(tokenizer, arguments.prompts, arguments.max_tokens)
    reference = Reference(model_folder)
    expected = load_or_generate(arguments.reference, prompts, reference)
    engine = Engine(model_folder, greedy_requests(prompts), tokenizer.eos_token_ids)
    num_wrong = 0
    for way in arguments.ways or engine.ways:
        served = engine.ways[way]()
        differences = [describe(*row, reference) for row in zip(prompts, expected, served.outputs, strict=True)]
        found = [difference for difference in differences if difference]
        num_wrong += sum(difference.startswith("WRONG") for difference in found)
        retracted = f" ({served.num_retractions} retractions)" if served.num_retractions else ""
        print(f"{way}{retracted}: {len(prompts) - len(found)} of {len(prompts)} rows equal", *found, sep="\n  ", flush=True)
    return int(num_wrong > 0)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--ways", nargs="*", help="some of the ways of serving, by name")
    parser.add_argument("--reference", type=Path, help="keep transformers' tokens in this file, and take them from there")
    return parser.parse_args()


def load_or_generate(path: Path | None, prompts: list[Prompt], reference: Reference) -> list[list[int]]:
    key = [[prompt.token_ids, prompt.max_tokens] for prompt in prompts]
    if path is not None and path.exists() and (kept := json.loads(path.read_text()))["prompts"] == key:
        return kept["outputs"]
    outputs = [reference.generate(prompt) for prompt in prompts]
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"prompts": key, "outputs": outputs}))
    return outputs


def describe(prompt: Prompt, expected: list[int], found: list[int], reference: Reference) -> str:
    """Where two outputs part, and how much likelier the expected token is there; empty where they do not."""
    if expected == found:
        return ""
    position = next((i for i, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1]), None)
    if position is None:
        return f"WRONG: a {prompt.family} row has {len(found)} tokens instead of {len(expected)}"
    gap = reference.gap(prompt.token_ids + expected[:position], expected[position], found[position])
    kind = "near tie" if abs(gap) < TIE_LOGITS else "WRONG"
    return f"{kind}: a {prompt.family} row parts at output token {position}, where the gap of logits is {gap:.1e}"


if __name__ == "__main__":
    sys.exit(main())
