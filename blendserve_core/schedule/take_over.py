"""When a rank takes on more requests than it began with: the same rule for engines and for the simulator."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from blendserve_core.schedule.policy import AdmissionPolicy


class ClaimMore(Protocol):
    """Claims a package of a kind, for good, of this shard or of any; None when there is none left."""

    def __call__(self, *, is_early: bool, own_only: bool = False) -> NDArray[np.int64] | None: ...


def take_over(policy: AdmissionPolicy, claim_more: ClaimMore) -> int:
    """Bring a package of each kind that the policy lacks; returns how many requests came. Called after every step.

    A package that is claimed only when it can start is claimed by the rank where it starts first. Long outputs that were
    planned for others are left to them until this rank is through with much of its own: else ranks that begin first would take
    them all.
    """
    lacks = policy.lacks
    wanted = [(False, False)] if lacks.late else []
    if lacks.early:
        wanted.insert(0, (True, not lacks.early_of_others))
    num_taken = 0
    for is_early, own_only in wanted:
        if (more := claim_more(is_early=is_early, own_only=own_only)) is not None:
            policy.add(more)
            num_taken += len(more)
    return num_taken
