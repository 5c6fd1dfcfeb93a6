"""An engine's account of itself: a heartbeat file while it runs, a manifest at its end."""

from __future__ import annotations

import resource
import time
from pathlib import Path

from blendserve_core.requests import RequestTable
from blendserve_core.run import StepRecord
from blendserve_core.schedule.scheduler import Counters
from blendserve_core.schedule.step import Capacity
from schemas.manifest import EngineManifest, Progress

HEARTBEAT_S = 1.0


class ProgressMeter:
    """Counts what an engine finishes and rewrites ``path`` about once a second."""

    def __init__(self, path: Path, requests: RequestTable, num_total: int, num_finished: int) -> None:
        self._path = path
        self._requests = requests
        self._num_total = num_total
        self._num_finished_before = num_finished
        self._started = time.monotonic()
        self._started_cpu_s = time.process_time()
        self._last_beat = float("-inf")
        self._schedule_s = 0.0
        self._num_computed_tokens = 0
        self._num_output_tokens = 0
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._num_errors = 0
        self.num_newly_finished = 0

    def expect(self, num_requests: int) -> None:
        """The engine took over so many more."""
        self._num_total += num_requests

    def count(self, record: StepRecord, num_running: int) -> None:
        """Take in one step, and tell of it if the last heartbeat is a while ago."""
        self._schedule_s += record.schedule_s
        self._num_computed_tokens += record.step.num_tokens
        for finished in record.finished:
            self.num_newly_finished += 1
            self._num_errors += finished.finish_reason == "error"
            self._num_output_tokens += len(finished.token_ids)
            self._num_prompt_tokens += int(self._requests.num_prompt_tokens[finished.request])
            self._num_cached_tokens += finished.num_cached_tokens
        if time.monotonic() - self._last_beat >= HEARTBEAT_S:
            self.beat("generating", num_running)

    def beat(self, phase: str, num_running: int = 0) -> None:
        """Rewrite the heartbeat file."""
        self._last_beat = time.monotonic()
        Progress(
            phase=phase,
            num_finished=self._num_finished_before + self.num_newly_finished,
            num_total=self._num_total,
            num_running=num_running,
            num_output_tokens=self._num_output_tokens,
            num_computed_tokens=self._num_computed_tokens,
            elapsed_s=self._last_beat - self._started,
            updated_at=time.time(),
        ).write(self._path, lasting=False)

    def manifest(
        self, rank: int, counters: Counters, engine_start_s: float, capacity: Capacity | None, *, interrupted: bool
    ) -> EngineManifest:
        """What this engine did; its clocks started when the meter was made. Without ``capacity`` no model was loaded."""
        capacity = capacity or Capacity(0, 0, 0, 0, 0)
        return EngineManifest(
            rank=rank,
            num_sequences=self.num_newly_finished,
            num_errors=self._num_errors,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_tokens=self._num_cached_tokens,
            num_output_tokens=self._num_output_tokens,
            num_steps=counters.num_steps,
            num_retractions=counters.num_retractions,
            num_recomputed_tokens=counters.num_recomputed_tokens,
            engine_start_s=engine_start_s,
            generate_s=time.monotonic() - self._started,
            schedule_s=self._schedule_s,
            generate_cpu_s=time.process_time() - self._started_cpu_s,
            kv_cache_tokens=capacity.num_tokens,
            max_step_tokens=capacity.max_step_tokens,
            max_sequences=capacity.max_sequences,
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            interrupted=interrupted,
        )
