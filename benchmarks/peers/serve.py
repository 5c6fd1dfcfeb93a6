"""How a peer's process talks to the benchmark: it loads once, then runs each workload it is told. Standard library only.

On standard input comes the path of a workload's JSON file per line; the answer is one line of JSON on standard output.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

Prompts = list[list[int]]
Generate = Callable[[Prompts, list[int]], list[int]]
"""Token ids of each prompt, and how many tokens to write for each; returns how many each got."""


def serve(load: Callable[[str], Generate]) -> None:
    """Answer until standard input ends. ``load`` gets the model folder, the first argument of the command line."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a peer prints goes to its log
    generate = load(sys.argv[1])
    _answer(answers, {"ready": True})
    for line in sys.stdin:
        workload = json.loads(Path(line.strip()).read_text(encoding="utf-8"))
        prompts, output_lens = workload["prompts"], workload["output_lens"]
        started = time.perf_counter()
        num_outputs = generate(prompts, output_lens)
        seconds = time.perf_counter() - started
        if num_outputs != output_lens:
            raise SystemExit(f"asked for {sum(output_lens)} output tokens, got {sum(num_outputs)}")
        _answer(answers, {"seconds": seconds})


def _answer(answers, message: dict) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()
