"""What a scheduling step costs with many running sequences, page tables and cache included.

``python benchmarks/schedule_speed.py`` prints one line per number of running sequences. Requests share prompts of 600 tokens by
groups, have 20 to 200 tokens of their own, and end after 200 outputs in the mean: of 1,000 that run, five end in a step and
five others enter. Times are CPU time of the scheduler alone, so other work on the machine matters little. Each figure is the
median over ``--repeat`` runs; "vs 64" is the mean over that of the first line, "vs objects" the time that a Python object per
sequence takes to list the same steps, over the mean.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from numpy.typing import NDArray

from blendserve_core.kv.segments import shared_segments
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.requests import RequestTable, SamplingColumns
from blendserve_core.schedule.policies.ordered import OrderedAdmission
from blendserve_core.schedule.scheduler import Scheduler
from blendserve_core.schedule.step import Capacity, StepPlan, StepResult

PAGE_SIZE = 16
MEAN_OUTPUT_TOKENS = 200
NUM_SHARED_TOKENS = 600
MAX_SEQUENCE_TOKENS = 32_768


def requests_like(num_requests: int, seed: int) -> RequestTable:
    """Prompts of 50 groups in random order, with geometric output limits."""
    rng = np.random.default_rng(seed)
    prefixes = rng.integers(0, 30_000, (50, NUM_SHARED_TOKENS), dtype=np.int32)
    num_own = rng.integers(20, 200, num_requests)
    prompts = [np.concatenate([prefixes[rng.integers(50)], rng.integers(0, 30_000, own, dtype=np.int32)]) for own in num_own]
    lens = np.array([len(prompt) for prompt in prompts], dtype=np.int32)
    return RequestTable(
        row=np.arange(num_requests),
        sample_index=np.zeros(num_requests, np.int32),
        prompt_start=np.cumsum(lens, dtype=np.int64) - lens,
        num_prompt_tokens=lens,
        token_ids=np.concatenate(prompts),
        sampling=SamplingColumns.greedy(num_requests, rng.geometric(1 / MEAN_OUTPUT_TOKENS, num_requests).astype(np.int32)),
    )


def scheduler_of(requests: RequestTable, num_running: int) -> Scheduler:
    tree = build_tree(requests)
    order = tree.request_order
    capacity = Capacity(
        num_pages=num_running * 100,
        page_size=PAGE_SIZE,
        max_step_tokens=2 * num_running + 1024,
        max_sequences=num_running,
        max_sequence_tokens=MAX_SEQUENCE_TOKENS,
    )
    segments = shared_segments(tree, order, PAGE_SIZE)
    return Scheduler(requests, order, segments, tree.request_order, OrderedAdmission(order), capacity, ())


def measure(num_running: int, num_steps: int, seed: int) -> tuple[NDArray[np.float64], float, float]:
    """(seconds of each step once the rows are full, mean sequences that enter in a step, seconds a step as objects takes)."""
    num_filling = MEAN_OUTPUT_TOKENS
    num_requests = num_running + (num_running * (num_filling + num_steps)) // MEAN_OUTPUT_TOKENS * 5 // 4
    scheduler = scheduler_of(requests_like(num_requests, seed), num_running)
    step_s, objects_s, num_entered = [], [], 0
    for i in range(num_filling + num_steps):
        started = time.thread_time()
        step = scheduler.schedule()
        scheduled = time.thread_time()
        assert step is not None, "the requests did not last"
        result = StepResult(np.zeros(int(step.is_sampled.sum()), dtype=np.int32), seconds=0.0)
        executed = time.thread_time()
        scheduler.update(result)
        if i >= num_filling:
            step_s.append(scheduled - started + time.thread_time() - executed)
            num_entered += int((step.num_outputs == 0).sum())
            if i % 50 == 0:
                objects_s.append(_as_objects_s(step))
    return np.array(step_s), num_entered / num_steps, float(np.median(objects_s))


def _as_objects_s(step: StepPlan) -> float:
    """CPU seconds to list a step's tokens and pages from one Python object per sequence."""
    pages = [step.page_indices[a:b].tolist() for a, b in zip(step.page_indptr[:-1], step.page_indptr[1:], strict=True)]
    tokens = [step.token_ids[a:b].tolist() for a, b in zip(step.token_indptr[:-1], step.token_indptr[1:], strict=True)]
    sequences = [
        {"id": seq_id, "tokens": new, "pages": own, "context": context}
        for seq_id, new, own, context in zip(step.seq_ids.tolist(), tokens, pages, step.context_lens.tolist(), strict=True)
    ]
    started = time.thread_time()
    listed: dict[str, list[int]] = {name: [] for name in ("seq_ids", "tokens", "pages", "contexts", "token_ends", "page_ends")}
    for sequence in sequences:
        listed["seq_ids"].append(sequence["id"])
        listed["contexts"].append(sequence["context"])
        listed["tokens"].extend(sequence["tokens"])
        listed["pages"].extend(sequence["pages"])
        listed["token_ends"].append(len(listed["tokens"]))
        listed["page_ends"].append(len(listed["pages"]))
    for values in listed.values():
        np.array(values, dtype=np.int32)
    return time.thread_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, nargs="+", default=[64, 256, 1000, 2000])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    measure(8, 10, seed=0)  # compiles
    print("running  enter/step  mean ms  P99 ms  vs 64  vs objects")
    first_mean = None
    for num_running in arguments.running:
        runs = [measure(num_running, arguments.steps, seed) for seed in range(arguments.repeat)]
        mean, p99 = (
            float(np.median([f(step_s) for step_s, _, _ in runs])) * 1e3 for f in (np.mean, lambda s: np.percentile(s, 99))
        )
        first_mean = first_mean or mean
        entered, objects = (float(np.median(values)) for values in list(zip(*runs, strict=True))[1:])
        ratios = f"{mean / first_mean:5.1f}  {objects * 1e3 / mean:10.1f}"
        print(f"{num_running:7d}  {entered:10.1f}  {mean:7.3f}  {p99:6.3f}  {ratios}")


if __name__ == "__main__":
    main()
