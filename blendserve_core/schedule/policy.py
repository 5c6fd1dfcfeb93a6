"""Admission: which request enters next, and how many prompt tokens a step takes. Policies see estimates, never true lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from blendserve_core.schedule.step import StepResult


class Load(NamedTuple):
    """What the scheduler tells a policy while it builds a step. Arrays are views of [num_running] and must not be kept.

    One is made for every request that is asked for, and a named tuple is made in a third of a frozen dataclass's time.

    running        request index of each running sequence, in admission order
    kv_lens        tokens each of them holds in KV, shared prefixes included
    num_outputs    output tokens each of them has so far
    num_free_pages pages free or held only by idle cache
    num_pages, page_size                        size of the KV pool
    num_decode_tokens, num_prefill_tokens       already in this step
    num_kv_tokens_read                          context the step's decodes will read
    """

    running: NDArray[np.int64]
    kv_lens: NDArray[np.int32]
    num_outputs: NDArray[np.int32]
    num_free_pages: int
    num_pages: int
    page_size: int
    num_decode_tokens: int
    num_prefill_tokens: int
    num_kv_tokens_read: int


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a policy may learn from a step: its load, its times, and which requests ended with how many output tokens."""

    num_decode_tokens: int
    num_prefill_tokens: int
    num_kv_tokens_read: int
    result: StepResult
    finished: NDArray[np.int64]
    finished_num_outputs: NDArray[np.int32]


class Lacks(NamedTuple):
    """Whether a policy could use more requests now: that decode long and start early, also such of other shards, and others."""

    early: bool
    early_of_others: bool
    late: bool


class AdmissionPolicy(Protocol):
    """Decides what enters. One instance drives one scheduler and owns the waiting requests."""

    @property
    def num_waiting(self) -> int: ...

    @property
    def lacks(self) -> Lacks:
        """What requests would be of use now."""
        ...

    def add(self, order: NDArray[np.int64]) -> None:
        """Take on more requests, in planned order; they are offered after, or between, those that wait."""
        ...

    def prefill_budget(self, load: Load, max_prefill_tokens: int) -> int:
        """Prompt tokens this step may process, at most ``max_prefill_tokens``."""
        ...

    def to_retract(self, load: Load) -> list[int]:
        """Running requests to put off before this step is built; each comes back by :meth:`put_back`."""
        ...

    def next(self, load: Load) -> int | None:
        """Take the next request to admit, or None if none should enter this step."""
        ...

    def put_back(self, request: int, *, retracted: bool) -> None:
        """Return a request that found no room (``retracted=False``: offer it first) or was retracted while running."""
        ...

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a finished step."""
        ...
