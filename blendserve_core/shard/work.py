"""What one engine has to do: its shard of the plan, less what is finished, and what it may take over from busier shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blendserve_core.data.parts import finished_requests
from blendserve_core.plan.plan import Plan
from blendserve_core.requests import RequestTable
from blendserve_core.shard.claims import Claims, Package
from blendserve_core.shard.unfinished import load_unfinished
from schemas.shard import EngineSpec

CLAIMS_FOLDER = "claims"


class Work:
    """An engine's work. ``order`` is what it starts with; :meth:`more` claims further packages, one at a time.

    ``outputs_so_far`` are tokens of requests that an earlier engine began. Of ``num_held`` requests that are this shard's,
    ``num_open`` are not finished.
    """

    def __init__(self, spec: EngineSpec) -> None:
        folders = [Path(folder) for folder in spec.done_folders]
        self.spec = spec
        self.folder = Path(spec.output_folder)
        self.requests = RequestTable.load(Path(spec.staged_folder))
        self.plan = Plan.load(Path(spec.plan_folder))
        self._claims = Claims(Path(spec.plan_folder) / CLAIMS_FOLDER, self.plan, spec.rank)
        self._is_open = ~finished_requests(self.requests, folders)
        held = np.concatenate([self._requests_of(package) for package in self._claims.held()])
        self.num_held, self.num_open = len(held), len(self._open(held))
        self.order = self._open(held if spec.suspects is None else np.array(spec.suspects, dtype=np.int64))
        self._is_exhausted = spec.suspects is not None
        if len(self.order) == 0 and (more := self.more()) is not None:
            self.order, self.num_held, self.num_open = more, self.num_held + len(more), len(more)
        self.outputs_so_far = self._resumable(load_unfinished(folders))

    @property
    def may_come(self) -> NDArray[np.int64]:
        """Everything that this engine may ever serve: what it starts with, then what may move."""
        if self.spec.suspects is not None:
            return self.order
        movable = [shard.in_packages(range(1, shard.num_packages + 1)) for shard in self.plan.shards]
        others = self._open(np.concatenate(movable))
        return np.concatenate([self.order, others[~np.isin(others, self.order)]])

    def more(self) -> NDArray[np.int64] | None:
        """Claim another package that is not all finished, and return its open requests. None when there is none to be had."""
        while not self._is_exhausted:
            package = self._claims.claim_next()
            self._is_exhausted = package is None
            if package is not None and len(requests := self._open(self._requests_of(package))):
                return requests
        return None

    def _requests_of(self, package: Package) -> NDArray[np.int64]:
        return self.plan.shards[package.shard].in_packages([package.number])

    def _open(self, requests: NDArray[np.int64]) -> NDArray[np.int64]:
        return requests[self._is_open[requests]]

    def _resumable(self, outputs: dict[int, NDArray[np.int32]]) -> dict[int, NDArray[np.int32]]:
        """Half-done outputs to go on from. Log-probabilities of earlier tokens are not kept, so those requests start over."""
        wants_logprobs = self.requests.sampling.logprobs >= 0
        return {
            request: token_ids
            for request, token_ids in outputs.items()
            if self._is_open[request] and not wants_logprobs[request]
        }
