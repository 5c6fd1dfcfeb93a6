"""How fast the planner is: 400,000 requests, 200 M prompt tokens, 35 % of them shared, from a memory-mapped token store.

    python benchmarks/plan_speed.py [--num-requests N] [--repeat 3] [--shards 4]

Three families as in the paper's traces: chats with unique prompts, few-shot classification in 57 subjects, and a few requests
with giant outputs. Prints medians of the tree and plan seconds, and the peak memory beyond the tokens themselves.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from blendserve_core.plan.build_tree import build_tree
from blendserve_core.requests import RequestTable, SamplingColumns

NUM_SUBJECTS = 57
SUBJECT_TOKENS = 660


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--num-requests", type=int, default=400_000)
    arguments.add_argument("--repeat", type=int, default=3)
    arguments.add_argument("--shards", type=int, default=4)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_requests(Path(folder), options.num_requests)
        requests = RequestTable.load(Path(folder))
        print(f"{requests.num_requests} requests, {requests.num_prompt_tokens.sum(dtype=np.int64) / 1e6:.1f} M tokens")
        build_tree(RequestTable.load(write_requests(Path(folder) / "tiny", 100)))
        seconds, peaks = [], []
        for _ in range(options.repeat):
            with PeakMemory() as memory:
                start = time.perf_counter()
                tree = build_tree(requests)
                seconds.append(time.perf_counter() - start)
            peaks.append(memory.peak_bytes)
        shared = 1 - tree.num_unique_tokens / requests.num_prompt_tokens.sum(dtype=np.int64)
        print(f"tree: {tree.num_nodes} nodes, {shared:.1%} shared, median {statistics.median(seconds):.2f} s of {seconds}")
        print(f"peak memory beyond the tokens: median {statistics.median(peaks) / 1e6:.0f} MB")


class PeakMemory:
    """Samples this process's anonymous memory, which leaves out the mapped token file."""

    def __enter__(self) -> PeakMemory:
        self.base = anonymous_bytes()
        self.peak_bytes = 0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.done.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.done.wait(0.01):
            self.peak_bytes = max(self.peak_bytes, anonymous_bytes() - self.base)


def anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))


def write_requests(folder: Path, num_requests: int, seed: int = 0) -> Path:
    """A request table in the paper's mix; every family starts with a system prompt of its own."""
    rng = np.random.default_rng(seed)
    family = rng.choice(3, num_requests, p=[0.68, 0.319, 0.001])
    lens = np.choose(family, [np.clip(rng.lognormal(5.65, 0.9, num_requests), 40, 8000), 0, 121]).astype(np.int32)
    few_shot = family == 1
    lens[few_shot] = SUBJECT_TOKENS + rng.integers(40, 200, few_shot.sum())
    starts = np.cumsum(lens, dtype=np.int64) - lens
    folder.mkdir(parents=True, exist_ok=True)
    tokens = np.lib.format.open_memmap(folder / "token_ids.npy", "w+", np.int32, (int(lens.sum(dtype=np.int64)),))
    for block in range(0, len(tokens), 1 << 22):
        stop = min(block + (1 << 22), len(tokens))
        tokens[block:stop] = rng.integers(0, 128_000, stop - block)
    prefixes = rng.integers(0, 128_000, (NUM_SUBJECTS, SUBJECT_TOKENS), dtype=np.int32)
    prefixes[:, :30] = prefixes[0, :30]
    systems = rng.integers(0, 128_000, (3, 30), dtype=np.int32)
    for request in range(num_requests):
        prefix = prefixes[rng.integers(NUM_SUBJECTS)] if few_shot[request] else systems[family[request]]
        tokens[starts[request] : starts[request] + len(prefix)] = prefix
    tokens.flush()
    return save_table(folder, tokens, starts, lens, np.choose(family, [1024, 8, 32768]))


def save_table(folder: Path, tokens: np.memmap, starts: np.ndarray, lens: np.ndarray, max_tokens: np.ndarray) -> Path:
    num_requests = len(lens)
    zeros = {
        name: np.zeros(num_requests, np.float32) for name in ("temperature", "min_p", "presence_penalty", "frequency_penalty")
    }
    ones = {name: np.ones(num_requests, np.float32) for name in ("top_p", "repetition_penalty")}
    sampling = SamplingColumns(
        max_tokens=max_tokens.astype(np.int32),
        top_k=np.zeros(num_requests, np.int32),
        rng_key=np.zeros(num_requests, np.uint64),
        ignore_eos=np.zeros(num_requests, bool),
        logprobs=np.full(num_requests, -1, np.int32),
        stop_token_indptr=np.zeros(num_requests + 1, np.int64),
        stop_token_ids=np.zeros(0, np.int32),
        stop_set=np.zeros(num_requests, np.int32),
        **zeros,
        **ones,
    )
    RequestTable(
        row=np.arange(num_requests),
        sample_index=np.zeros(num_requests, np.int32),
        prompt_start=starts,
        num_prompt_tokens=lens,
        token_ids=tokens,
        sampling=sampling,
    ).save(folder)
    return folder


if __name__ == "__main__":
    main()
