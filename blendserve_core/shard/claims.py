"""Who generates a package of requests that may move: the first engine that claims it, for good.

A claim is a file that is created once. It survives a crash of whoever made it: started again, that shard finds its claims and
finishes them, and no other ever takes them. So a package has one owner at any time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from blendserve_core.data.durable import sync
from blendserve_core.plan.plan import FIXED, Plan


@dataclass(frozen=True, slots=True, order=True)
class Package:
    """Package ``number`` of the shard that it was planned for."""

    shard: int
    number: int


def drop_damaged_claims(folder: Path) -> None:
    """Remove claims that a crashed machine left empty; not while an engine runs."""
    for path in folder.glob("shard-*-package-*"):
        if not path.read_text().isdigit():
            path.unlink()


class Claims:
    """The claims of one shard, ``rank``, in a folder that all shards of a plan share."""

    def __init__(self, folder: Path, plan: Plan, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._plan = plan
        self._rank = rank

    def held(self) -> list[Package]:
        """What this shard has to do, whatever others do: its fixed part, and what it claimed before."""
        mine = [package for package in self._movable() if self._owner(package) == self._rank]
        return [Package(self._rank, FIXED), *mine]

    def claim_next(self) -> Package | None:
        """Claim one more package: of this shard, else of the shard with the most left. None when all have owners."""
        while (package := self._next_free()) is not None:
            if self._claim(package):
                return package
        return None

    def _movable(self) -> list[Package]:
        shards = self._plan.shards
        return [Package(shard.rank, number) for shard in shards for number in range(1, shard.num_packages + 1)]

    def _next_free(self) -> Package | None:
        free = [package for package in self._movable() if self._owner(package) is None]
        own = [package for package in free if package.shard == self._rank]
        if own:
            return own[0]
        num_left = {package.shard: sum(other.shard == package.shard for other in free) for package in free}
        # A busy shard goes through its packages from the first on, so others take the last.
        return max(free, key=lambda package: (num_left[package.shard], package), default=None)

    def _path(self, package: Package) -> Path:
        return self._folder / f"shard-{package.shard:05d}-package-{package.number:05d}"

    def _owner(self, package: Package) -> int | None:
        try:
            return int(self._path(package).read_text())
        except FileNotFoundError:
            return None

    def _claim(self, package: Package) -> bool:
        """Make the claim visible with its owner in it, at once or not at all. False if another was first."""
        draft = self._folder / f".claim-of-{self._rank:05d}"
        draft.write_text(str(self._rank))
        sync(draft)
        try:
            os.link(draft, self._path(package))
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        sync(self._folder)
        return True
