"""What one engine has to do: its shard of the plan, less what is finished, and what it may take over from busier shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blendserve_core.data.parts import finished_requests
from blendserve_core.plan.plan import Plan
from blendserve_core.plan.rank_work import RankWork
from blendserve_core.requests import RequestTable
from blendserve_core.shard.claims import Claims
from blendserve_core.shard.unfinished import load_unfinished
from schemas.shard import EngineSpec

CLAIMS_FOLDER = "claims"


class Work:
    """An engine's work. ``order`` is what it starts with; ``more`` claims further packages, one at a time.

    ``outputs_so_far`` are tokens of requests that an earlier engine began. Of ``num_held`` requests that are this shard's,
    ``num_open`` are not finished.
    """

    def __init__(self, spec: EngineSpec) -> None:
        folders = [Path(folder) for folder in spec.done_folders]
        self.spec = spec
        self.folder = Path(spec.output_folder)
        self.requests = RequestTable.load(Path(spec.staged_folder))
        self.plan = Plan.load(Path(spec.plan_folder))
        claims = Claims(Path(spec.plan_folder) / CLAIMS_FOLDER, self.plan, spec.rank)
        self._is_open = ~finished_requests(self.requests, folders)
        suspects = None if spec.suspects is None else np.array(spec.suspects, dtype=np.int64)
        self._of_rank = RankWork(self.plan, claims, self._is_open, suspects)
        self.order, self.more = self._of_rank.order, self._of_rank.more
        self.num_held, self.num_open = len(self._of_rank.held), len(self._of_rank.open(self._of_rank.held))
        self.outputs_so_far = self._resumable(load_unfinished(folders))

    @property
    def may_come(self) -> NDArray[np.int64]:
        """Everything that this engine may ever serve: what it starts with, then what may move."""
        return self._of_rank.may_come

    def _resumable(self, outputs: dict[int, NDArray[np.int32]]) -> dict[int, NDArray[np.int32]]:
        """Half-done outputs to go on from. Log-probabilities of earlier tokens are not kept, so those requests start over."""
        wants_logprobs = self.requests.sampling.logprobs >= 0
        return {
            request: token_ids
            for request, token_ids in outputs.items()
            if self._is_open[request] and not wants_logprobs[request]
        }
