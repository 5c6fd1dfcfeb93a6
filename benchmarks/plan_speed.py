"""How fast the planner is: 400,000 requests, 200 M prompt tokens, a third of them shared, from a memory-mapped token store.

    python benchmarks/plan_speed.py [--num-requests N] [--repeat 3] [--shards 4]

Three families as in the paper's traces: chats with unique prompts, few-shot classification in 57 subjects, and a few requests
with giant outputs. Prints medians of seconds, and the peak of memory beyond the tokens themselves (Linux only).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.hardware import a100_80gb
from blendserve_core.perf.presets import llama_3_8b
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.lengths import Observations, estimate_lengths
from blendserve_core.plan.planner import make_plan
from blendserve_core.plan.sample import choose_sample
from blendserve_core.requests import RequestTable, SamplingColumns

NUM_SUBJECTS = 57
SUBJECT_TOKENS = 620
SYSTEM_TOKENS = 20
FAMILY_SHARES = [0.745, 0.254, 0.001]
MEAN_OUTPUTS = [200, 2, 16_000]
VOCAB_SIZE = 128_000


@dataclass(frozen=True, slots=True)
class Job:
    requests: RequestTable
    family: NDArray[np.int64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-requests", type=int, default=400_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--shards", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(write_job(Path(folder) / "tiny", 500), options.shards)
        job = write_job(Path(folder) / "job", options.num_requests)
        rounds = [measure(job, options.shards) for _ in range(options.repeat)]
    print(
        f"{job.requests.num_requests} requests, {job.requests.num_prompt_tokens.sum(dtype=np.int64) / 1e6:.1f} M prompt tokens"
    )
    for name in rounds[0]:
        values = [measured[name] for measured in rounds]
        # Later rounds find memory that earlier ones gave back to the allocator, not to the system.
        value = max(values) if name.startswith("peak") else statistics.median(values)
        print(f"{name:<32} {value:10.3f}   of {', '.join(f'{value:.3f}' for value in values)}")


def measure(job: Job, num_shards: int) -> dict[str, float]:
    """Seconds of each stage after tokenization, peak memory, and what the plan says of itself."""
    cost = CostModel(llama_3_8b(), a100_80gb())
    clock = [time.perf_counter()]
    with PeakMemory() as memory:
        tree = build_tree(job.requests)
        clock.append(time.perf_counter())
        sample = choose_sample(tree, job.requests, 0.01, seed=0)
        outputs = np.random.default_rng(1).poisson(np.array(MEAN_OUTPUTS)[job.family[sample]]).astype(np.int32)
        observations = Observations(sample, outputs, np.ones(len(sample), bool))
        clock.append(time.perf_counter())
        estimates = estimate_lengths(tree, job.requests, observations)
        clock.append(time.perf_counter())
        plan = make_plan(job.requests, tree, estimates, cost, "blend", num_shards)
        clock.append(time.perf_counter())
    stages = np.diff(clock)
    return {
        "tree_s": stages[0],
        "sample_s": stages[1],
        "estimate_s": stages[2],
        "order_and_cut_s": stages[3],
        "whole_plan_s": stages.sum(),
        "peak_mb_beyond_tokens": memory.peak_bytes / 1e6,
        "tree_nodes": tree.num_nodes,
        "sharing_ratio": plan.summary.sharing_ratio,
        "share_of_max_sharing": plan.summary.sharing_ratio / plan.summary.max_sharing_ratio,
    }


class PeakMemory:
    """Watches this process's anonymous memory, which leaves out the mapped token file."""

    def __enter__(self) -> PeakMemory:
        self.base_bytes, self.peak_bytes = anonymous_bytes(), 0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.done.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.done.wait(0.002):
            self.peak_bytes = max(self.peak_bytes, anonymous_bytes() - self.base_bytes)


def anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))


def write_job(folder: Path, num_requests: int, seed: int = 0) -> Job:
    """A request table in the paper's mix, its token ids in a file; every family starts with a system prompt of its own."""
    rng = np.random.default_rng(seed)
    family = rng.choice(3, num_requests, p=FAMILY_SHARES)
    chat_lens = np.clip(rng.lognormal(5.67, 0.9, num_requests), 40, 8000)
    lens = np.choose(family, [chat_lens, SUBJECT_TOKENS + rng.integers(40, 200, num_requests), 121]).astype(np.int32)
    starts = np.cumsum(lens, dtype=np.int64) - lens
    folder.mkdir(parents=True)
    tokens = np.lib.format.open_memmap(folder / "token_ids.npy", "w+", np.int32, (int(lens.sum(dtype=np.int64)),))
    for first in range(0, len(tokens), 1 << 22):
        tokens[first : first + (1 << 22)] = rng.integers(0, VOCAB_SIZE, len(tokens[first : first + (1 << 22)]))
    write_prefixes(tokens, starts, family, rng)
    tokens.flush()
    max_tokens = np.array([1024, 8, 32_768], np.int32)[family]
    columns = (np.arange(num_requests), np.zeros(num_requests, np.int32), starts, lens)
    RequestTable(*columns, tokens, SamplingColumns.greedy(num_requests, max_tokens)).save(folder)
    return Job(RequestTable.load(folder), family)


def write_prefixes(tokens: np.memmap, starts: NDArray[np.int64], family: NDArray[np.int64], rng: np.random.Generator) -> None:
    systems = rng.integers(0, VOCAB_SIZE, (3, SYSTEM_TOKENS))
    few_shot = rng.integers(0, VOCAB_SIZE, (NUM_SUBJECTS, SUBJECT_TOKENS))
    few_shot[:, :SYSTEM_TOKENS] = systems[1]
    subject = rng.integers(0, NUM_SUBJECTS, len(starts))
    for request, start in enumerate(starts):
        prefix = few_shot[subject[request]] if family[request] == 1 else systems[family[request]]
        tokens[start : start + len(prefix)] = prefix


if __name__ == "__main__":
    main()
