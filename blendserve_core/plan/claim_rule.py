"""Which package of requests a rank takes next, whoever keeps the record: engines on disk, or the simulator in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from blendserve_core.plan.plan import FIXED, Plan


@dataclass(frozen=True, slots=True, order=True)
class Package:
    """Package ``number`` of the shard that it was planned for."""

    shard: int
    number: int


class ClaimRule(ABC):
    """What rank ``rank`` of a plan holds and may claim. A package has one owner, for good."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self._plan = plan
        self._rank = rank

    @abstractmethod
    def _owner(self, package: Package) -> int | None: ...

    @abstractmethod
    def _claim(self, package: Package) -> bool:
        """Whether this rank has become the owner; another may have been first."""

    def held(self) -> list[Package]:
        """What this rank has to do, whatever others do: its fixed part, and what it claimed before."""
        packages = [*self._movable(is_early=True), *self._movable(is_early=False)]
        mine = sorted(package for package in packages if self._owner(package) == self._rank)
        return [Package(self._rank, FIXED), *mine]

    def claim_next(self, *, is_early: bool, own_only: bool = False) -> Package | None:
        """Claim one more package of the kind: of this shard, else of the shard with the most left. None if none is free."""
        while (package := self._next_free(is_early=is_early, own_only=own_only)) is not None:
            if self._claim(package):
                return package
        return None

    def _movable(self, *, is_early: bool) -> Iterable[Package]:
        for shard in self._plan.shards:
            border = shard.num_early_packages + 1
            for number in range(1, border) if is_early else range(border, shard.num_packages + 1):
                yield Package(shard.rank, number)

    def _next_free(self, *, is_early: bool, own_only: bool) -> Package | None:
        free = [package for package in self._movable(is_early=is_early) if self._owner(package) is None]
        own = [package for package in free if package.shard == self._rank]
        if own or own_only or not free:
            return own[0] if own else None
        num_left = {package.shard: sum(other.shard == package.shard for other in free) for package in free}
        busiest = max(num_left, key=lambda shard: (num_left[shard], shard))
        of_busiest = [package for package in free if package.shard == busiest]
        # A busy shard goes through its packages from the first on, so others take the last. What takes long cannot wait.
        return of_busiest[0 if is_early else -1]
