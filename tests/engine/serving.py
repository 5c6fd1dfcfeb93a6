"""A scheduler over an executor that is already there, in the plainest order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blendserve_core.kv.segments import no_segments, shared_segments
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.requests import RequestTable
from blendserve_core.run import run_steps
from blendserve_core.schedule.policies.ordered import OrderedAdmission
from blendserve_core.schedule.scheduler import Scheduler
from blendserve_core.schedule.step import Executor


def make_scheduler(
    executor: Executor,
    requests: RequestTable,
    *,
    order: NDArray[np.int64] | None = None,
    prefix_sharing: bool = True,
    eos_token_ids: tuple[int, ...] = (),
    outputs_so_far: dict[int, NDArray[np.int32]] | None = None,
) -> Scheduler:
    """Requests in ``order`` of admission, by default all in the table's."""
    planned = np.arange(requests.num_requests) if order is None else order
    tree, capacity = build_tree(requests), executor.capacity
    segments = shared_segments(tree, planned, capacity.page_size) if prefix_sharing else no_segments(requests.num_requests)
    policy = OrderedAdmission(planned)
    return Scheduler(requests, planned, segments, tree.request_order, policy, capacity, eos_token_ids, outputs_so_far)


def outputs_of(scheduler: Scheduler, executor: Executor) -> dict[int, list[int]]:
    """Run to the end; output token ids by request."""
    finished = [ended for record in run_steps(scheduler, executor) for ended in record.finished]
    return {ended.request: ended.token_ids.tolist() for ended in finished}
