"""The scheduler: continuous batching with chunked prefill over paged KV. It says what one step processes, never how.

A step takes every decode, goes on with begun prompts, then admits what the policy offers, within the token budget and the
pages. When decodes need pages and none are left, idle cache is evicted, then the newest sequence is retracted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blendserve_core.kv.prefix_cache import NOT_WAITING, Match
from blendserve_core.kv.segments import Segments
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.build_step import build_step, step_rows
from blendserve_core.schedule.finish import FinishReason, FinishRules
from blendserve_core.schedule.memory import Memory
from blendserve_core.schedule.policy import AdmissionPolicy, Load, StepOutcome
from blendserve_core.schedule.running import Running
from blendserve_core.schedule.step import Capacity, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class Finished:
    """A sequence that ended. ``finish_reason`` is stop, length or error; ``error`` says what went wrong, else empty."""

    request: int
    token_ids: NDArray[np.int32]
    finish_reason: FinishReason
    num_cached_tokens: int
    error: str = ""


@dataclass(slots=True)
class Counters:
    """What the scheduler did so far."""

    num_steps: int = 0
    num_computed_tokens: int = 0
    num_retractions: int = 0
    num_recomputed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Retracted:
    outputs: NDArray[np.int32]
    num_cached: int


_NEVER_RETRACTED = _Retracted(np.empty(0, dtype=np.int32), -1)


@dataclass(frozen=True, slots=True)
class _InFlight:
    """The step that was handed out: its rows, their new tokens, which of them sample, and its load."""

    rows: NDArray[np.int64]
    counts: NDArray[np.int32]
    is_sampled: NDArray[np.bool_]
    num_decodes: int
    num_kv_tokens_read: int


class Scheduler:
    """One shard's scheduler: owns its running sequences and their memory.

    Call :meth:`schedule` for the next step (None when all is done), then :meth:`update` with its result. ``order`` holds the
    shard's requests as planned, ``request_order`` all requests in the order of the tree that ``segments`` come from.
    Requests in ``outputs_so_far`` go on from there.
    """

    def __init__(
        self,
        requests: RequestTable,
        order: NDArray[np.int64],
        segments: Segments,
        request_order: NDArray[np.int64],
        policy: AdmissionPolicy,
        capacity: Capacity,
        eos_token_ids: tuple[int, ...],
        outputs_so_far: dict[int, NDArray[np.int32]] | None = None,
    ) -> None:
        rank = np.full(requests.num_requests, NOT_WAITING, dtype=np.int64)
        rank[order] = np.arange(len(order))
        self._requests = requests
        self._prompts = np.asarray(requests.token_ids)
        self._policy = policy
        self._capacity = capacity
        self._finish_rules = FinishRules(requests.sampling, eos_token_ids)
        self._memory = Memory(segments, request_order, rank, capacity.num_pages, capacity.page_size)
        self._running = Running.empty(capacity.max_sequences)
        self._retracted = {request: _Retracted(outputs, -1) for request, outputs in (outputs_so_far or {}).items()}
        self._dropped: list[int] = []
        self._failed: list[Finished] = []
        self._in_flight: _InFlight | None = None
        self.counters = Counters()

    @property
    def num_running(self) -> int:
        return self._running.num

    def schedule(self) -> StepPlan | None:
        """The next step, or None when every request has ended. It has no tokens when all that was left has failed."""
        assert self._in_flight is None, "the last step's result is missing"
        if self._running.num == 0 and self._policy.num_waiting == 0 and not self._failed:
            return None
        self.counters.num_steps += 1
        counts = self._plan_tokens()
        while not counts.any() and self._running.num > 0:
            self._make_room()
            counts = self._plan_tokens()
        assert counts.any() or self._failed, "the policy offers nothing although nothing runs"
        return self._hand_out(counts)

    def update(self, result: StepResult, stopped: frozenset[int] = frozenset()) -> list[Finished]:
        """Take in a step's tokens; ``stopped`` are requests whose text now holds a stop string. Returns what ended."""
        step, running = self._in_flight, self._running
        assert step is not None, "no step is in flight"
        self._in_flight = None
        self._memory.release_copy_sources()
        running.num_computed[step.rows] += step.counts
        sampled = step.rows[step.is_sampled]
        running.append_outputs(sampled, result.token_ids)
        reasons = self._finish_rules.reasons(
            running.seq_ids[sampled],
            result.token_ids,
            running.num_outputs[sampled],
            running.max_outputs[sampled],
            stopped | result.completed,
        )
        finished = [self._finish(int(sampled[i]), reason) for i, reason in reasons.items()]
        self._drop_rows(sampled[list(reasons)])
        finished += self._failed
        self._failed = []
        self._policy.observe(_outcome(step, result, finished))
        return finished

    def unfinished_outputs(self) -> dict[int, NDArray[np.int32]]:
        """Outputs so far of every sequence that has some and is not done: what a run that ends early knows of them."""
        running = self._running
        outputs = {int(running.seq_ids[row]): running.outputs_of(row) for row in range(running.num)}
        outputs |= {request: retracted.outputs for request, retracted in self._retracted.items()}
        return {request: token_ids for request, token_ids in outputs.items() if len(token_ids) > 0}

    def _plan_tokens(self) -> NDArray[np.int32]:
        """New tokens of every running row, [num_running], with their pages taken. Admits what fits."""
        running = self._running
        counts = np.zeros(self._capacity.max_sequences, dtype=np.int32)
        decodes = self._grow_decodes()
        counts[decodes] = 1
        load = self._load(len(decodes), 0, int(running.num_computed[decodes].sum()))
        limit = self._capacity.max_step_tokens - len(decodes)
        budget = min(limit, self._policy.prefill_budget(load, limit)) if len(decodes) else limit
        left = self._continue_prefills(counts, budget)
        self._admit(counts, left, load)
        return counts[: running.num]

    def _grow_decodes(self) -> NDArray[np.int64]:
        """Rows with one token to go, all with room for it; retracts the newest sequences until that holds."""
        while True:
            decodes = np.flatnonzero(self._running.num_remaining == 1)
            if self._memory.grow(self._running, decodes):
                return decodes
            if self._running.num == 1:
                return decodes[:0]
            self._retract_newest()

    def _continue_prefills(self, counts: NDArray[np.int32], budget: int) -> int:
        """Go on with prompts that were begun, oldest first. Returns the budget left."""
        running = self._running
        remaining = running.num_remaining
        for row in np.flatnonzero(counts[: running.num] == 0).tolist():
            num_new = min(int(remaining[row]), budget)
            if num_new > 0:
                start = int(running.num_computed[row])
                counts[row] = self._memory.extend(running, row, start, num_new, self.counters.num_steps)
                budget -= int(counts[row])
        return budget

    def _admit(self, counts: NDArray[np.int32], budget: int, load: Load) -> None:
        """Let in what the policy offers while there is budget, a row and room."""
        left = budget
        while left > 0 and not self._running.is_full:
            num_prefill_tokens = load.num_prefill_tokens + budget - left
            request = self._policy.next(self._load(load.num_decode_tokens, num_prefill_tokens, load.num_kv_tokens_read))
            if request is None:
                return
            if self._is_hopeless(request):
                continue
            match = self._memory.pin(request, self._num_known_tokens(request), self.counters.num_steps)
            if match is None:
                self._policy.put_back(request, retracted=False)
                return
            num_new = min(left, self._num_known_tokens(request) - match.num_tokens - match.num_tail_tokens)
            if not self._has_room(request, match, num_new, counts):
                self._memory.unpin(request, match)
                self._policy.put_back(request, retracted=False)
                return
            counts[self._enter(request, match, num_new)] = num_new
            left -= num_new

    def _has_room(self, request: int, match: Match, num_new: int, counts: NDArray[np.int32]) -> bool:
        """Whether the whole prompt fits beside the rest of the begun ones, with a reserve for the outputs of what runs."""
        running, memory = self._running, self._memory
        num_cached_pages = len(match.pages)
        first_pages = memory.num_pages_for(match.num_tokens + match.num_tail_tokens + num_new) - num_cached_pages
        all_pages = memory.num_pages_for(self._num_known_tokens(request) + 1) - num_cached_pages
        promised = int((running.num_remaining - counts[: running.num]).sum()) // memory.page_size + running.num // 8
        is_alone = running.num == 0
        return (is_alone or all_pages + promised <= memory.num_available_pages) and memory.can_hold(first_pages)

    def _enter(self, request: int, match: Match, num_new: int) -> int:
        """Make a pinned request a running row with pages for its first ``num_new`` tokens. Returns the row."""
        requests, running = self._requests, self._running
        retracted = self._retracted.pop(request, _NEVER_RETRACTED)
        num_prompt, num_cached = int(requests.num_prompt_tokens[request]), match.num_tokens + match.num_tail_tokens
        row = running.append(
            seq_ids=request,
            prompt_starts=int(requests.prompt_start[request]),
            num_prompt_tokens=num_prompt,
            num_tokens=num_prompt,
            num_computed=num_cached,
            max_outputs=min(int(requests.sampling.max_tokens[request]), self._capacity.max_sequence_tokens - num_prompt),
            num_cached=num_cached if retracted.num_cached < 0 else retracted.num_cached,
        )
        running.set_outputs(row, retracted.outputs)
        self._memory.seat(running, row, match)
        num_given = self._memory.extend(running, row, match.num_tokens, num_new, self.counters.num_steps)
        assert num_given == num_new, f"{num_new} tokens were promised pages, {num_given} have them"
        if match.num_tail_tokens:
            self._memory.copy_tail(running, row, match)
        if retracted.num_cached >= 0:
            self.counters.num_recomputed_tokens += int(running.num_tokens[row]) - num_cached
        return row

    def _is_hopeless(self, request: int) -> bool:
        """Whether not even an empty pool would hold the known tokens and one more; such a request ends at once, as an error."""
        num_tokens = self._num_known_tokens(request) + 1
        most = min(self._capacity.num_tokens, self._capacity.max_sequence_tokens)
        if num_tokens <= most:
            return False
        retracted = self._retracted.pop(request, _NEVER_RETRACTED)
        self._memory.forget(request)
        error = f"{num_tokens} tokens do not fit: a sequence may have {most} in a KV pool of {self._capacity.num_tokens} tokens"
        self._failed.append(Finished(request, retracted.outputs, "error", max(0, retracted.num_cached), error))
        return True

    def _make_room(self) -> None:
        """Nothing can go on: retract the newest sequence; if it is the only one, the pool is too small for it."""
        if self._running.num > 1:
            self._retract_newest()
            return
        error = f"after {self._running.num_tokens[0]} tokens the KV pool of {self._capacity.num_tokens} tokens is full"
        self._failed.append(self._finish(0, "error", error))
        self._drop_rows(np.zeros(1, dtype=np.int64))

    def _retract_newest(self) -> None:
        running = self._running
        row = running.num - 1
        request = int(running.seq_ids[row])
        self._retracted[request] = _Retracted(running.outputs_of(row), int(running.num_cached[row]))
        self._memory.free(running, row, is_finished=False)
        self._drop_rows(np.array([row]))
        self._policy.put_back(request, retracted=True)
        self.counters.num_retractions += 1

    def _finish(self, row: int, reason: FinishReason, error: str = "") -> Finished:
        running = self._running
        self._memory.free(running, row, is_finished=True)
        return Finished(int(running.seq_ids[row]), running.outputs_of(row), reason, int(running.num_cached[row]), error)

    def _drop_rows(self, rows: NDArray[np.int64]) -> None:
        if len(rows):
            self._dropped += self._running.seq_ids[rows].tolist()
            self._running.drop(rows)

    def _num_known_tokens(self, request: int) -> int:
        num_outputs = len(self._retracted[request].outputs) if request in self._retracted else 0
        return int(self._requests.num_prompt_tokens[request]) + num_outputs

    def _load(self, num_decode_tokens: int, num_prefill_tokens: int, num_kv_tokens_read: int) -> Load:
        running = self._running
        return Load(
            running=running.seq_ids[: running.num],
            kv_lens=running.num_computed[: running.num],
            num_outputs=running.num_outputs,
            num_free_pages=self._memory.num_available_pages,
            num_pages=self._capacity.num_pages,
            page_size=self._capacity.page_size,
            num_decode_tokens=num_decode_tokens,
            num_prefill_tokens=num_prefill_tokens,
            num_kv_tokens_read=num_kv_tokens_read,
        )

    def _hand_out(self, counts: NDArray[np.int32]) -> StepPlan:
        rows, num_decodes = step_rows(self._running, counts)
        counts, dropped = counts[rows], self._dropped
        self._dropped = []
        step = build_step(self._running, rows, counts, self._prompts, self._capacity.page_size, self._memory.copies, dropped)
        num_kv_tokens_read = int(step.context_lens[:num_decodes].sum())
        self._in_flight = _InFlight(rows, counts, step.is_sampled, num_decodes, num_kv_tokens_read)
        self.counters.num_computed_tokens += step.num_tokens
        return step


def _outcome(step: _InFlight, result: StepResult, finished: list[Finished]) -> StepOutcome:
    return StepOutcome(
        num_decode_tokens=step.num_decodes,
        num_prefill_tokens=int(step.counts.sum()) - step.num_decodes,
        num_kv_tokens_read=step.num_kv_tokens_read,
        result=result,
        finished=np.array([f.request for f in finished], dtype=np.int64),
        finished_num_outputs=np.array([len(f.token_ids) for f in finished], dtype=np.int32),
    )
