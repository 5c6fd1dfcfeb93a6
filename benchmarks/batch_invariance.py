"""Whether bfloat16 tokens depend on what shares a row's batch, with and without ``batch_invariant``, and what that costs.

    python benchmarks/batch_invariance.py --prompts 60

The same greedy rows with forced lengths run together, one at a time and in small chunks; a row counts as different where any
token is. The cost compares CPU seconds of running together, in turns, medians of ``--rounds``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

from real_prompts import greedy_requests, real_prompts, serve

from blendserve_core.engine.model.folder import resolve_model
from blendserve_core.requests import RequestTable
from blendserve_core.text.tokenizer import PromptTokenizer
from schemas.parameters import EngineOptions

WAYS = {"one at a time": {"max_sequences": 1}, "in chunks of 64": {"max_step_tokens": 64, "max_sequences": 48}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    folder = resolve_model("demo")
    prompts = real_prompts(PromptTokenizer.load(folder), arguments.prompts, arguments.max_tokens)
    requests = greedy_requests(prompts, ignore_eos=True)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    together: dict[bool, list[list[int]]] = {}
    for _ in range(arguments.rounds):
        for invariant, times in seconds.items():
            together[invariant], cpu_s = run(folder, requests, EngineOptions(batch_invariant=invariant))
            times.append(cpu_s)
    for invariant in seconds:
        name = "batch-invariant" if invariant else "as it comes"
        for way, options in WAYS.items():
            outputs, _ = run(folder, requests, EngineOptions(batch_invariant=invariant, **options))
            differing = sum(one != other for one, other in zip(outputs, together[invariant], strict=True))
            print(f"{name}, {way}: {differing} of {len(outputs)} rows differ from running together", flush=True)
    plain, invariant = median(seconds[False]), median(seconds[True])
    print(f"together: {plain:.1f} s of CPU as it comes, {invariant:.1f} s batch-invariant ({invariant / plain - 1:+.1%})")


def run(folder: Path, requests: RequestTable, options: EngineOptions) -> tuple[list[list[int]], float]:
    """Outputs, and CPU seconds without loading."""
    served = serve(folder, requests, "bfloat16", options, eos_token_ids=())
    return served.outputs, served.cpu_s


if __name__ == "__main__":
    main()
