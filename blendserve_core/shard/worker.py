"""The engine process of one shard: ``python -m blendserve_core.shard.worker SPEC.json PARENT_PID``.

It needs no Prefect. Finished rows go to disk as they finish; a heartbeat tells the supervisor how far it is. Told to stop
(SIGTERM, or its parent's death), it ends its step, writes what is done and what is half done, and leaves with status 0. A full
disk has a status of its own, because no other engine would fare better.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil

from blendserve_core.data.durable import NO_SPACE
from blendserve_core.data.parts import PartWriter
from blendserve_core.engine.choose import load_executor, measure_once
from blendserve_core.kv.segments import no_segments, shared_segments
from blendserve_core.perf.engine_cost import engine_cost
from blendserve_core.run import run_steps
from blendserve_core.schedule.policies.make import make_policy
from blendserve_core.schedule.policy import AdmissionPolicy
from blendserve_core.schedule.scheduler import Counters, Scheduler
from blendserve_core.schedule.step import Executor
from blendserve_core.schedule.take_over import take_over
from blendserve_core.shard.collect import Collector
from blendserve_core.shard.in_flight import forget_in_flight, noting
from blendserve_core.shard.progress import ProgressMeter
from blendserve_core.shard.supervise import DISK_IS_FULL
from blendserve_core.shard.unfinished import UnfinishedKeeper, save_unfinished
from blendserve_core.shard.work import Work
from blendserve_core.text.tokenizer import PromptTokenizer
from blendserve_core.trace import NoTrace, StepTrace
from schemas.manifest import EngineManifest
from schemas.shard import EngineSpec

PR_SET_PDEATHSIG = 1


class StopFlag:
    """Set by SIGTERM; the loop looks at it after every step."""

    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._set)

    def _set(self, *_: object) -> None:
        self.is_set = True


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel send SIGTERM when the parent ends; where it cannot (not Linux), the engine finishes its shard."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent_pid:
            os.kill(os.getpid(), signal.SIGTERM)


def serve(work: Work, stop: StopFlag) -> EngineManifest:
    """Generate a shard, and what it takes over from others, into the engine's folder.

    It ends when all is done, when enough of a warm-up is, or when it is told to stop.
    """
    spec, model_folder = work.spec, Path(work.spec.model_folder)
    tokenizer = PromptTokenizer.load(model_folder)
    if spec.num_engines == 1:  # engines beside this one would be measured too
        measure_once(model_folder, spec.dtype, spec.engine)
    trace = StepTrace(spec.rank) if spec.profile else None
    tracer = trace or NoTrace()
    executor = load_executor(model_folder, work.requests, spec.dtype, spec.engine, spec.rank, spec.num_engines, trace)
    with closing(noting(executor, work.folder)) as noted:
        policy, scheduler = _make_scheduler(work, noted, tokenizer.eos_token_ids)
        collector = Collector(work.requests, tokenizer, work.outputs_so_far)
        engine_start_s = time.time() - psutil.Process().create_time()
        meter = ProgressMeter(work.folder / "progress.json", work.requests, work.num_held, work.num_held - work.num_open)
        outputs_so_far = UnfinishedKeeper(work.folder)
        with PartWriter(work.folder) as parts:
            for record in run_steps(scheduler, noted, collector.find_stopped, tracer):
                with tracer.span("rows"):
                    parts.extend(collector.collect(record))
                    meter.count(record, scheduler.num_running)
                    outputs_so_far.keep_if_due(scheduler.unfinished_outputs)
                tracer.end_step(tokens=record.step.num_tokens, sequences=record.step.num_sequences)
                if stop.is_set or meter.num_newly_finished >= (spec.stop_at_finished or float("inf")):
                    break
                meter.expect(take_over(policy, work.more))
    save_unfinished(work.folder, scheduler.unfinished_outputs())
    forget_in_flight(work.folder)
    if trace is not None and spec.profile is not None:
        trace.save(Path(spec.profile))
    meter.beat("stopped" if stop.is_set else "done")
    return meter.manifest(spec.rank, scheduler.counters, engine_start_s, executor.capacity, interrupted=stop.is_set)


def serve_nothing(work: Work, stop: StopFlag) -> EngineManifest:
    """For a shard that earlier engines finished, or an engine that is told to stop before it began: no model is loaded."""
    meter = ProgressMeter(work.folder / "progress.json", work.requests, work.num_held, work.num_held - work.num_open)
    return meter.manifest(work.spec.rank, Counters(), engine_start_s=0.0, capacity=None, interrupted=stop.is_set)


def _make_scheduler(work: Work, executor: Executor, eos_token_ids: tuple[int, ...]) -> tuple[AdmissionPolicy, Scheduler]:
    """The shard's policy and scheduler for an executor's capacity."""
    capacity, planned = executor.capacity, work.may_come
    is_sharing = work.spec.engine.prefix_sharing
    tree, num_requests = work.plan.tree, work.requests.num_requests
    segments = shared_segments(tree, planned, capacity.page_size) if is_sharing else no_segments(num_requests)
    cost = engine_cost(Path(work.spec.model_folder), work.spec.dtype, work.spec.engine, work.spec.num_engines)
    policy = make_policy(work.spec.policy, work.plan, work.order, work.requests, cost, capacity, work.outputs_so_far)
    scheduler = Scheduler(
        work.requests, planned, segments, tree.request_order, policy, capacity, eos_token_ids, work.outputs_so_far
    )
    return policy, scheduler


def main(spec_path: str, parent_pid: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    stop = StopFlag()
    die_with_parent(int(parent_pid))
    try:
        work = Work(EngineSpec.read(Path(spec_path)))
        is_needed = len(work.order) > 0 and not stop.is_set
        manifest = serve(work, stop) if is_needed else serve_nothing(work, stop)
        manifest.write(work.folder / "manifest.json")
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        logging.exception("the disk is full")
        sys.exit(DISK_IS_FULL)


if __name__ == "__main__":
    main(*sys.argv[1:])
