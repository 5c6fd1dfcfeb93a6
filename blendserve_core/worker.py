"""The engine process of one shard: ``python -m blendserve_core.worker SPEC.json PARENT_PID``.

It needs no Prefect. Finished rows go to part files as they finish; a heartbeat tells the supervisor how far it is. Told to stop
(SIGTERM, or its parent's death), it ends its step, writes what is done and what is half done, and leaves with status 0.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from blendserve_core.collect import Collector
from blendserve_core.data.parts import PartWriter, finished_requests
from blendserve_core.engine.load import load_cpu_executor
from blendserve_core.kv.segments import no_segments, shared_segments
from blendserve_core.perf.engine_cost import engine_cost
from blendserve_core.plan.plan import Plan
from blendserve_core.progress import ProgressMeter
from blendserve_core.requests import RequestTable
from blendserve_core.run import run_steps
from blendserve_core.schedule.policies.make import make_policy
from blendserve_core.schedule.scheduler import Counters, Scheduler
from blendserve_core.schedule.step import Executor
from blendserve_core.text.tokenizer import PromptTokenizer
from blendserve_core.unfinished import load_unfinished, save_unfinished
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


@dataclass(frozen=True, slots=True)
class Work:
    """What one engine has to do: ``order`` is what is left of its shard, some of it begun by an earlier engine."""

    spec: EngineSpec
    requests: RequestTable
    plan: Plan
    order: NDArray[np.int64]
    outputs_so_far: dict[int, NDArray[np.int32]]

    @classmethod
    def load(cls, spec: EngineSpec) -> Work:
        requests = RequestTable.load(Path(spec.staged_folder))
        plan = Plan.load(Path(spec.plan_folder))
        folders = [Path(folder) for folder in spec.done_folders]
        planned = plan.shards[spec.rank].order
        order = planned[~finished_requests(requests, folders)[planned]]
        return cls(spec, requests, plan, order, _resumable(load_unfinished(folders), requests, order))

    @property
    def folder(self) -> Path:
        return Path(self.spec.output_folder)


def serve(work: Work, stop: StopFlag) -> EngineManifest:
    """Generate what is left of a shard and write it to the engine's folder."""
    tokenizer = PromptTokenizer.load(Path(work.spec.model_folder))
    with closing(load_cpu_executor(Path(work.spec.model_folder), work.requests, work.spec.dtype, work.spec.engine)) as executor:
        scheduler = make_scheduler(work, executor, tokenizer.eos_token_ids)
        engine_start_s = time.time() - psutil.Process().create_time()
        meter, is_complete = _run(work, scheduler, executor, Collector(work.requests, tokenizer, work.outputs_so_far), stop)
    save_unfinished(work.folder, scheduler.unfinished_outputs())
    return meter.manifest(work.spec.rank, scheduler.counters, engine_start_s, interrupted=not is_complete)


def nothing_left(work: Work) -> EngineManifest:
    """Of a shard that earlier engines finished; no model is loaded for it."""
    num_planned = work.plan.shards[work.spec.rank].num_requests
    meter = ProgressMeter(work.folder / "progress.json", work.requests, num_planned, num_planned)
    return meter.manifest(work.spec.rank, Counters(), engine_start_s=0.0, interrupted=False)


def make_scheduler(work: Work, executor: Executor, eos_token_ids: tuple[int, ...]) -> Scheduler:
    """The shard's scheduler for an executor's capacity, under the spec's policy."""
    capacity, num_requests = executor.capacity, work.requests.num_requests
    is_sharing = work.spec.engine.prefix_sharing
    segments = shared_segments(work.plan.tree, work.order, capacity.page_size) if is_sharing else no_segments(num_requests)
    cost = engine_cost(Path(work.spec.model_folder))
    policy = make_policy(work.spec.policy, work.plan, work.spec.rank, work.order, work.requests, cost, capacity)
    return Scheduler(
        work.requests, work.order, segments, work.plan.tree.request_order, policy, capacity, eos_token_ids, work.outputs_so_far
    )


def _run(
    work: Work, scheduler: Scheduler, executor: Executor, collector: Collector, stop: StopFlag
) -> tuple[ProgressMeter, bool]:
    """The step loop. Returns the meter, and whether the engine did all it was asked to."""
    num_planned = work.plan.shards[work.spec.rank].num_requests
    num_wanted = min(len(work.order), work.spec.stop_at_finished or len(work.order))
    meter = ProgressMeter(work.folder / "progress.json", work.requests, num_planned, num_planned - len(work.order))
    with PartWriter(work.folder) as parts:
        for record in run_steps(scheduler, executor, collector.find_stopped):
            parts.extend(collector.collect(record))
            meter.count(record, scheduler.num_running)
            if stop.is_set or meter.num_newly_finished >= num_wanted:
                break
    return meter, meter.num_newly_finished >= num_wanted


def _resumable(
    outputs: dict[int, NDArray[np.int32]], requests: RequestTable, order: NDArray[np.int64]
) -> dict[int, NDArray[np.int32]]:
    """Half-done outputs that this engine can go on from. Log-probabilities of earlier tokens are not kept: those start over."""
    is_open = np.zeros(requests.num_requests, dtype=np.bool_)
    is_open[order] = requests.sampling.logprobs[order] < 0
    return {request: token_ids for request, token_ids in outputs.items() if is_open[request]}


def main(spec_path: str, parent_pid: str) -> None:
    stop = StopFlag()
    die_with_parent(int(parent_pid))
    work = Work.load(EngineSpec.read(Path(spec_path)))
    manifest = serve(work, stop) if len(work.order) else nothing_left(work)
    manifest.write(work.folder / "manifest.json")


if __name__ == "__main__":
    main(*sys.argv[1:])
