"""Step plans by hand: sequences with pages of their own, and steps that say how many tokens each one processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from blendserve_core.requests import RequestTable
from blendserve_core.schedule.step import Capacity, Executor, StepPlan, StepResult


@dataclass
class Running:
    """``prefix_node`` and ``prefix_len`` say which leading tokens it reads from pages that others read too."""

    tokens: list[int]
    pages: list[int] = field(default_factory=list)
    num_computed: int = 0
    prefix_node: int = -1
    prefix_len: int = 0
    logprobs: list[dict[int, float]] = field(default_factory=list)


class HandScheduler:
    """Builds the plans a test asks for and keeps what the executor answers. Pages are taken in the order of ``free_pages``."""

    def __init__(self, requests: RequestTable, capacity: Capacity, free_pages: Sequence[int] | None = None) -> None:
        self.requests = requests
        self.page_size = capacity.page_size
        self.free_pages = list(range(capacity.num_pages) if free_pages is None else free_pages)
        self.running: dict[int, Running] = {}
        self.copies: list[tuple[int, int, int]] = []
        self.dropped: list[int] = []

    def admit(self, *sequences: int) -> None:
        for sequence in sequences:
            self.running[sequence] = Running(self.requests.prompt(sequence).tolist())

    def admit_behind(self, sequence: int, other: int, num_shared: int) -> None:
        """Admit a sequence that reads ``num_shared`` tokens from another's pages; a page shared in part is copied."""
        num_whole_pages, num_tail = divmod(num_shared, self.page_size)
        self.admit(sequence)
        new, old = self.running[sequence], self.running[other]
        new.pages = old.pages[:num_whole_pages]
        new.num_computed = num_shared
        new.prefix_len = old.prefix_len = num_whole_pages * self.page_size
        new.prefix_node = old.prefix_node = 5 if num_whole_pages else -1
        if num_tail:
            new.pages.append(self.free_pages.pop(0))
            self.copies.append((old.pages[num_whole_pages], new.pages[-1], num_tail))

    def drop(self, sequence: int) -> list[int]:
        """End or retract a sequence: its own pages are free again. Returns its outputs."""
        gone = self.running.pop(sequence)
        self.free_pages = gone.pages[gone.prefix_len // self.page_size :] + self.free_pages
        self.dropped.append(sequence)
        return gone.tokens[self.requests.num_prompt_tokens[sequence] :]

    def outputs(self, sequence: int) -> list[int]:
        return self.running[sequence].tokens[self.requests.num_prompt_tokens[sequence] :]

    def step(self, executor: Executor, **num_tokens: int) -> StepResult:
        """Process ``s0=3`` tokens of sequence 0, and so on; a sequence whose last known token is in the step is sampled."""
        plan = self.plan({int(name[1:]): number for name, number in num_tokens.items()})
        result = executor.execute(plan)
        self._take(plan, result)
        return result

    def prefill_and_decode(self, executor: Executor, num_outputs: int) -> None:
        """Run everything admitted until each sequence has ``num_outputs``: whole prompts first, then decodes."""
        while left := {s: r for s, r in self.running.items() if len(self.outputs(s)) < num_outputs}:
            plan = self.plan({s: len(r.tokens) - r.num_computed for s, r in left.items()})
            self._take(plan, executor.execute(plan))

    def plan(self, num_tokens: dict[int, int]) -> StepPlan:
        decodes_first = sorted(num_tokens, key=lambda s: not (num_tokens[s] == 1 and self.outputs(s)))
        chosen = [self.running[sequence] for sequence in decodes_first]
        counts = [num_tokens[sequence] for sequence in decodes_first]
        contexts = [running.num_computed for running in chosen]
        new_tokens: list[int] = []
        for running, count in zip(chosen, counts, strict=True):
            new_tokens += running.tokens[running.num_computed : running.num_computed + count]
            running.num_computed += count
            while len(running.pages) * self.page_size < running.num_computed:
                running.pages.append(self.free_pages.pop(0))
        copies = np.array(self.copies, dtype=np.int32).reshape(-1, 3)
        plan = StepPlan(
            seq_ids=np.array(decodes_first, dtype=np.int64),
            token_indptr=_indptr(counts),
            token_ids=np.array(new_tokens, dtype=np.int32),
            context_lens=np.array(contexts, dtype=np.int32),
            page_indptr=_indptr([len(running.pages) for running in chosen]),
            page_indices=np.array([page for running in chosen for page in running.pages], dtype=np.int32),
            last_page_lens=np.array([(r.num_computed - 1) % self.page_size + 1 for r in chosen], dtype=np.int32),
            is_sampled=np.array([r.num_computed == len(r.tokens) for r in chosen]),
            num_outputs=np.array([len(self.outputs(sequence)) for sequence in decodes_first], dtype=np.int32),
            prefix_nodes=np.array([running.prefix_node for running in chosen], dtype=np.int32),
            prefix_lens=np.array([running.prefix_len for running in chosen], dtype=np.int32),
            finished_seq_ids=np.array(self.dropped, dtype=np.int64),
            copy_src_pages=copies[:, 0],
            copy_dst_pages=copies[:, 1],
            copy_lens=copies[:, 2],
        )
        self.copies, self.dropped = [], []
        return plan

    def _take(self, plan: StepPlan, result: StepResult) -> None:
        sampled = plan.seq_ids[plan.is_sampled].tolist()
        assert len(result.token_ids) == len(sampled)
        for row, sequence in enumerate(sampled):
            self.running[sequence].tokens.append(int(result.token_ids[row]))
            if result.logprobs is not None:
                top = zip(result.logprobs.top_token_ids[row].tolist(), result.logprobs.top[row].tolist(), strict=True)
                self.running[sequence].logprobs.append(dict(top))


def _indptr(counts: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
