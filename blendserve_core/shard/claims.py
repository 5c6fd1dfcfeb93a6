"""Who generates a package of requests that may move: the first engine that claims it, for good.

A claim is a file that is created once. It survives a crash of whoever made it: started again, that shard finds its claims and
finishes them, and no other ever takes them. So a package has one owner at any time.
"""

from __future__ import annotations

import os
from pathlib import Path

from blendserve_core.data.durable import sync
from blendserve_core.plan.claim_rule import ClaimRule, Package
from blendserve_core.plan.plan import Plan


def drop_damaged_claims(folder: Path) -> None:
    """Remove claims that a crashed machine left empty; not while an engine runs."""
    for path in folder.glob("shard-*-package-*"):
        if not path.read_text().isdigit():
            path.unlink()


class Claims(ClaimRule):
    """The claims of one shard, ``rank``, in a folder that all shards of a plan share."""

    def __init__(self, folder: Path, plan: Plan, rank: int) -> None:
        super().__init__(plan, rank)
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

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
