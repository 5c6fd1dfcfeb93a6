"""Ranks that run side by side on one clock and take over packages from one another, as engines do.

The rank whose clock is earliest steps next, so claims come in the order in which engines would make them. What a rank may claim
and when is decided by the code that decides for engines: :class:`ClaimRule` and :func:`take_over`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from blendserve_core.plan.claim_rule import ClaimRule, Package
from blendserve_core.plan.plan import Plan
from blendserve_core.plan.rank_work import RankWork
from blendserve_core.schedule.policy import AdmissionPolicy
from blendserve_core.schedule.take_over import take_over
from blendserve_core.sim.part import Part, PartRun


class SharedClaims(ClaimRule):
    """One rank's view of ``owners``, which all ranks share."""

    def __init__(self, plan: Plan, rank: int, owners: dict[Package, int]) -> None:
        super().__init__(plan, rank)
        self._owners = owners

    def _owner(self, package: Package) -> int | None:
        return self._owners.get(package)

    def _claim(self, package: Package) -> bool:
        return self._owners.setdefault(package, self._rank) == self._rank


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank at work."""

    work: RankWork
    policy: AdmissionPolicy
    run: PartRun


def run_ranks(ranks: list[Rank], before_step: Callable[[int], None]) -> list[Part]:
    """Run all ranks to their ends; ``before_step`` is told whose step comes."""
    clocks = [(0.0, number) for number in range(len(ranks))]
    while clocks:
        number = heapq.heappop(clocks)[1]
        rank = ranks[number]
        before_step(number)
        if rank.run.step():
            take_over(rank.policy, rank.work.more)
            heapq.heappush(clocks, (rank.run.seconds, number))
    return [rank.run.part() for rank in ranks]
