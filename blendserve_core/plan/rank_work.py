"""What one rank of a plan has to do: its fixed part, what it claimed before, and what it may still claim."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blendserve_core.plan.claim_rule import ClaimRule, Package
from blendserve_core.plan.plan import Plan


class RankWork:
    """``held`` is what was this rank's from the start, and ``order`` what of it is open; :meth:`more` claims further packages.

    ``is_open`` [R] says which requests are not finished. A rank that has nothing to begin with claims a first package at once.
    With ``only`` it serves those requests, and claims nothing.
    """

    def __init__(
        self, plan: Plan, claims: ClaimRule, is_open: NDArray[np.bool_], only: NDArray[np.int64] | None = None
    ) -> None:
        self._plan = plan
        self._claims = claims
        self._is_open = is_open
        self._only = only
        self._is_exhausted, self._are_own_exhausted = (dict.fromkeys((True, False), only is not None) for _ in range(2))
        self.held = np.concatenate([self._requests_of(package) for package in claims.held()])
        self.order = self.open(self.held if only is None else only)
        if len(self.order) == 0 and (more := self._first()) is not None:
            self.held, self.order = np.concatenate([self.held, more]), more

    @property
    def may_come(self) -> NDArray[np.int64]:
        """Everything that this rank may ever serve: what it starts with, then what may move."""
        if self._only is not None:
            return self.order
        movable = [shard.in_packages(range(1, shard.num_packages + 1)) for shard in self._plan.shards]
        others = self.open(np.concatenate(movable))
        return np.concatenate([self.order, others[~np.isin(others, self.order)]])

    def more(self, *, is_early: bool, own_only: bool = False) -> NDArray[np.int64] | None:
        """Claim a package of the kind that is not all finished, and return its open requests. None when there is none."""
        exhausted = self._are_own_exhausted if own_only else self._is_exhausted
        while not (exhausted[is_early] or self._is_exhausted[is_early]):
            package = self._claims.claim_next(is_early=is_early, own_only=own_only)
            exhausted[is_early] = package is None
            if package is not None and len(requests := self.open(self._requests_of(package))):
                return requests
        return None

    def open(self, requests: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those that are not finished."""
        return requests[self._is_open[requests]]

    def _first(self) -> NDArray[np.int64] | None:
        early = self.more(is_early=True)
        return early if early is not None else self.more(is_early=False)

    def _requests_of(self, package: Package) -> NDArray[np.int64]:
        return self._plan.shards[package.shard].in_packages([package.number])
