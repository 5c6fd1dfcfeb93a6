"""The scheduler: continuous batching with chunked prefill over paged KV. It says what one step processes, never how.

A step takes every decode, goes on with begun prompts, then admits what the policy offers, within the token budget and the
pages. When decodes need pages and none are left, idle cache is evicted, then the newest sequence is retracted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blendserve_core.kv.arrays import NOT_WAITING
from blendserve_core.kv.segments import Segments
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.build_step import step_columns, step_rows
from blendserve_core.schedule.finish import FinishReason, FinishRules
from blendserve_core.schedule.handed_out import HandedOut
from blendserve_core.schedule.memory import Memory
from blendserve_core.schedule.outcome import Counters, Finished
from blendserve_core.schedule.policy import AdmissionPolicy, Load
from blendserve_core.schedule.put_off import PutOff
from blendserve_core.schedule.running import Running
from blendserve_core.schedule.step import Capacity, StepPlan, StepResult

__all__ = ["Counters", "Finished", "Scheduler"]


class Scheduler:
    """One shard's scheduler: owns its running sequences and their memory.

    Call :meth:`schedule` for the next step (None when all is done), then :meth:`update` with its result. In between
    :meth:`schedule_ahead` may give the step after it, which then is the one whose result comes next. ``order`` holds the
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
        self._prompts = _read_only(requests.token_ids)
        self._policy = policy
        self._capacity = capacity
        self._finish_rules = FinishRules(requests.sampling, eos_token_ids)
        self._running = Running(capacity.max_sequences)
        self._memory = Memory(segments, request_order, rank, capacity, self._running)
        self._put_off = PutOff(outputs_so_far or {})
        self._dropped: list[int] = []
        self._failed: list[Finished] = []
        self._in_flight: HandedOut | None = None
        # The step before the one in flight, while its tokens are counted but not known.
        self._unseen: HandedOut | None = None
        self.counters = Counters()

    @property
    def num_running(self) -> int:
        return self._running.num

    def schedule(self) -> StepPlan | None:
        """The next step, or None when every request has ended. It has no tokens when all that was left has failed."""
        assert self._in_flight is None, "the last step's result is missing"
        assert self._unseen is None, "the last step's result is missing"
        if self._running.num == 0 and self._policy.num_waiting == 0 and not self._failed:
            return None
        self.counters.num_steps += 1
        num_tokens = self._plan_tokens()
        while num_tokens == 0 and self._running.num > 0:
            self._make_room()
            num_tokens = self._plan_tokens()
        assert num_tokens > 0 or self._failed, "the policy offers nothing although nothing runs"
        return self._hand_out()

    def schedule_ahead(self) -> StepPlan | None:
        """The step after the one in flight, whose tokens are not known; None where it has to wait for them.

        Every sampled row has one more token then, whatever it is. Rows that have all they may have take no part. Of those that
        turn out to have ended, this step computes one token too many, which is dropped. It waits where a row would have to be
        retracted, because what is retracted has to be known.
        """
        step = self._in_flight
        assert step is not None, "no step is in flight"
        assert self._unseen is None, "two steps are in flight"
        self._memory.advance(step.live_rows, step.is_sampled, step.unseen_tokens)
        self._unseen, self._in_flight = step, None
        if self._policy.to_retract(self._load(0, 0, 0)) or (grown := self._memory.grow_decodes()) is None:
            return None
        self.counters.num_steps += 1
        if self._plan_prompts(*grown):
            return self._hand_out()
        self.counters.num_steps -= 1
        return None

    def of_running(self, step: StepPlan, result: StepResult) -> tuple[StepPlan, StepResult]:
        """The oldest step in flight and its result, without what it sampled for rows that had ended by the step before."""
        return self._oldest.of_live_rows(step, result)

    def update(self, result: StepResult, stopped: frozenset[int] = frozenset()) -> list[Finished]:
        """Take in a step's tokens; ``stopped`` are requests whose text now holds a stop string. Returns what ended."""
        step = self._oldest
        token_ids = np.ascontiguousarray(result.token_ids, dtype=np.int32)
        sampled = step.live_rows[step.is_sampled]
        if self._unseen is None:
            self._in_flight = None
            self._memory.advance(step.live_rows, step.is_sampled, token_ids)
        else:
            self._unseen = None
            self._memory.see_newest(sampled, token_ids)
        ended, reasons = self._finish_rules.ends(self._running.columns, sampled, token_ids, stopped | result.completed)
        finished = [self._finished(row, reason) for row, reason in zip(ended.tolist(), reasons, strict=True)]
        self._end(ended, is_finished=True)
        if self._in_flight is not None:
            self._in_flight = self._in_flight.without(ended)
        finished += self._failed
        self._failed = []
        self._policy.observe(step.outcome(result, finished))
        return finished

    def unfinished_outputs(self) -> dict[int, NDArray[np.int32]]:
        """Outputs so far of every sequence that has some and is not done: what a run that ends early knows of them."""
        running = self._running
        outputs = {int(running.columns.seq_ids[row]): running.outputs_of(row) for row in range(running.num)}
        outputs |= self._put_off.outputs()
        return {request: token_ids for request, token_ids in outputs.items() if len(token_ids) > 0}

    @property
    def _oldest(self) -> HandedOut:
        """The step whose result comes next."""
        step = self._unseen or self._in_flight
        assert step is not None, "no step is in flight"
        return step

    def _plan_tokens(self) -> int:
        """Give every running row its new tokens with their pages, and admit what fits. Returns the number of new tokens."""
        self._retract_what_the_policy_puts_off()
        return self._plan_prompts(*self._grow_decodes())

    def _plan_prompts(self, num_decodes: int, num_kv_tokens_read: int) -> int:
        """Beside the decodes: tokens of begun prompts and of new ones. Returns the number of all new tokens."""
        load = self._load(num_decodes, 0, num_kv_tokens_read)
        limit = self._capacity.max_step_tokens - num_decodes
        budget = min(limit, self._policy.prefill_budget(load, limit))
        left, num_promised = self._memory.continue_prefills(budget, self.counters.num_steps)
        return num_decodes + budget - self._admit(budget, left, num_promised, load)

    def _grow_decodes(self) -> tuple[int, int]:
        """Decodes, all with room for their token, and the KV tokens they read; retracts the newest rows until that holds."""
        while (grown := self._memory.grow_decodes()) is None:
            if self._running.num == 1:
                return 0, 0
            self._retract(self._running.num - 1)
        return grown

    def _admit(self, budget: int, left: int, num_promised: int, load: Load) -> int:
        """Let in what the policy offers while some of the budget is left, a row and room. Returns the budget left."""
        while left > 0 and not self._running.is_full:
            request = self._policy.next(self._load(load.num_decode_tokens, budget - left, load.num_kv_tokens_read))
            if request is None:
                break
            if self._is_hopeless(request):
                continue
            num_new, num_later = self._enter(request, left, num_promised)
            if num_new == 0:
                self._policy.put_back(request, retracted=False)
                break
            left -= num_new
            num_promised += num_later
        return left

    def _enter(self, request: int, budget: int, num_promised: int) -> tuple[int, int]:
        """Make a request a running row with pages for its first tokens: (how many they are, how many come later).

        (0, 0) where it must wait.
        """
        requests, running = self._requests, self._running
        begun = self._put_off.of(request)
        num_prompt, num_outputs = int(requests.num_prompt_tokens[request]), len(begun.outputs)
        prompt = int(requests.prompt_start[request]), num_prompt
        max_outputs = min(int(requests.sampling.max_tokens[request]), self._capacity.max_sequence_tokens - num_prompt)
        num_new, num_cached = self._memory.admit(
            request, prompt, num_outputs, max_outputs, budget, num_promised, self.counters.num_steps
        )
        if num_new == 0:
            return 0, 0
        self._put_off.drop(request)
        if num_outputs:
            running.set_outputs(running.num - 1, begun.outputs)
        num_missing = num_prompt + num_outputs - num_cached
        if begun.has_run:
            self.counters.num_recomputed_tokens += num_missing
        running.columns.rows["num_cached"][running.num - 1] = begun.num_cached if begun.has_run else num_cached
        return num_new, num_missing - num_new

    def _is_hopeless(self, request: int) -> bool:
        """Whether not even an empty pool would hold the known tokens and one more; such a request ends at once, as an error."""
        num_tokens = self._num_known_tokens(request) + 1
        most = min(self._capacity.num_tokens, self._capacity.max_sequence_tokens)
        if num_tokens <= most:
            return False
        begun = self._put_off.of(request)
        self._put_off.drop(request)
        self._memory.forget(request)
        error = f"{num_tokens} tokens do not fit: a sequence may have {most} in a KV pool of {self._capacity.num_tokens} tokens"
        self._failed.append(Finished(request, begun.outputs, "error", max(0, begun.num_cached), error))
        return True

    def _make_room(self) -> None:
        """Nothing can go on: retract the newest sequence; if it is the only one, the pool is too small for it."""
        running = self._running
        if running.num > 1:
            self._retract(self._running.num - 1)
            return
        num_tokens = self._num_known_tokens(int(running.columns.seq_ids[0])) + int(running.columns.num_outputs[0])
        error = f"after {num_tokens} tokens the KV pool of {self._capacity.num_tokens} tokens is full"
        self._failed.append(self._finished(0, "error", error))
        self._end(np.zeros(1, dtype=np.int64), is_finished=True)

    def _retract_what_the_policy_puts_off(self) -> None:
        running = self._running
        for request in self._policy.to_retract(self._load(0, 0, 0)):
            self._retract(int(np.flatnonzero(running.columns.seq_ids[: running.num] == request)[0]))

    def _retract(self, row: int) -> None:
        ended = self._finished(row, "error")
        self._put_off.keep(ended)
        self._end(np.array([row]), is_finished=False)
        self._policy.put_back(ended.request, retracted=True)
        self.counters.num_retractions += 1

    def _finished(self, row: int, reason: FinishReason, error: str = "") -> Finished:
        columns = self._running.columns
        request, num_cached = int(columns.seq_ids[row]), int(columns.rows[row]["num_cached"])
        return Finished(request, self._running.outputs_of(row), reason, num_cached, error)

    def _end(self, rows: NDArray[np.int64], *, is_finished: bool) -> None:
        if len(rows):
            self._dropped += self._running.columns.seq_ids[rows].tolist()
            self._memory.end(rows, is_finished=is_finished)

    def _num_known_tokens(self, request: int) -> int:
        return int(self._requests.num_prompt_tokens[request]) + len(self._put_off.of(request).outputs)

    def _load(self, num_decode_tokens: int, num_prefill_tokens: int, num_kv_tokens_read: int) -> Load:
        running, num = self._running.columns, self._running.num
        return Load(
            running.seq_ids[:num],
            running.num_computed[:num],
            running.num_outputs[:num],
            self._memory.num_available_pages,
            self._capacity.num_pages,
            self._capacity.page_size,
            num_decode_tokens,
            num_prefill_tokens,
            num_kv_tokens_read,
        )

    def _hand_out(self) -> StepPlan:
        running = self._running
        rows, num_decodes = step_rows(running.num, *running.arrays)
        columns = step_columns(rows, self._prompts, self._capacity.page_size, *running.arrays)
        finished = np.array(self._dropped, dtype=np.int64)
        self._dropped = []
        step = StepPlan(*columns, finished, *self._memory.copies)
        self._in_flight = HandedOut.of(step, rows, num_decodes)
        self.counters.num_computed_tokens += step.num_tokens
        return step


def _read_only(token_ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """As a memory-mapped store is: one type for compiled code, wherever the tokens lie."""
    view = np.asarray(token_ids).view()
    view.flags.writeable = False
    return view
