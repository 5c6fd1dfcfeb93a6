"""From token ids to finished rows: text, stop strings, log-probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blendserve_core.data.parts import Generation, TokenLogprob
from blendserve_core.requests import RequestTable
from blendserve_core.run import StepRecord
from blendserve_core.schedule.scheduler import Finished
from blendserve_core.schedule.step import StepPlan, StepResult
from blendserve_core.text.stops import StopWatcher
from blendserve_core.text.tokenizer import PromptTokenizer


class Collector:
    """Follows the tokens of running requests as far as their rows need it, and makes rows of those that end.

    ``outputs_so_far`` are tokens from an earlier engine, which the stop watcher has to know as well.
    """

    def __init__(
        self, requests: RequestTable, tokenizer: PromptTokenizer, outputs_so_far: dict[int, NDArray[np.int32]]
    ) -> None:
        self._requests = requests
        self._watcher = StopWatcher(tokenizer)
        self._has_stops = len(requests.sampling.stop_sets) > 1
        self._is_watched: set[int] = set()
        self._outputs_so_far = outputs_so_far
        self._logprobs: dict[int, list[TokenLogprob]] = {}

    def find_stopped(self, step: StepPlan, result: StepResult) -> frozenset[int]:
        """Requests of the step in whose text a stop string has just appeared."""
        if not self._has_stops:
            return frozenset()
        sampled = step.seq_ids[step.is_sampled]
        has_stop = self._requests.sampling.stop_set[sampled] > 0
        pairs = zip(sampled[has_stop].tolist(), result.token_ids[has_stop].tolist(), strict=True)
        return frozenset(request for request, token_id in pairs if self._push(request, token_id))

    def collect(self, record: StepRecord) -> list[Generation]:
        """Rows of the requests that ended with this step."""
        if record.result.logprobs is not None:
            self._keep_logprobs(record)
        return [self._generation(finished) for finished in record.finished]

    def _push(self, request: int, token_id: int) -> bool:
        if request not in self._is_watched:
            self._is_watched.add(request)
            self._watcher.add(request, self._stops_of(request))
            for earlier in self._outputs_so_far.get(request, np.empty(0, dtype=np.int32)).tolist():
                self._watcher.push(request, earlier)
        return self._watcher.push(request, token_id)

    def _keep_logprobs(self, record: StepRecord) -> None:
        logprobs = record.result.logprobs
        assert logprobs is not None
        num_top = self._requests.sampling.logprobs
        for i, request in enumerate(record.step.seq_ids[record.step.is_sampled].tolist()):
            if num_top[request] >= 0:
                kept = slice(0, int(num_top[request]))
                entry = TokenLogprob(
                    token_id=int(record.result.token_ids[i]),
                    logprob=float(logprobs.chosen[i]),
                    top_token_ids=logprobs.top_token_ids[i, kept].tolist(),
                    top_logprobs=logprobs.top[i, kept].tolist(),
                )
                self._logprobs.setdefault(request, []).append(entry)

    def _generation(self, finished: Finished) -> Generation:
        request, token_ids = finished.request, finished.token_ids.tolist()
        text, _ = self._watcher.final_text(token_ids, self._stops_of(request))
        self._watcher.drop(request)
        is_error = finished.finish_reason == "error"
        return Generation(
            row=int(self._requests.row[request]),
            sample_index=int(self._requests.sample_index[request]),
            output_text=None if is_error else text,
            output_token_ids=None if is_error else token_ids,
            finish_reason=finished.finish_reason,
            num_prompt_tokens=int(self._requests.num_prompt_tokens[request]),
            num_cached_tokens=finished.num_cached_tokens,
            num_output_tokens=len(token_ids),
            logprobs=self._logprobs.pop(request, None),
            error={"type": "capacity", "message": finished.error, "stage": "generate"} if is_error else None,
        )

    def _stops_of(self, request: int) -> tuple[str, ...]:
        return self._requests.sampling.stop_sets[self._requests.sampling.stop_set[request]]
