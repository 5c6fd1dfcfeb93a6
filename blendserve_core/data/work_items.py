"""After staging, one request per distinct piece of work: duplicates share an outcome, and known outcomes are taken over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blendserve_core.data.digests import first_of_equals, work_digests
from blendserve_core.data.duplicates import Duplicates
from blendserve_core.data.reuse import EarlierOutput, take_over
from blendserve_core.data.row_digests import StagedRows
from blendserve_core.data.staged_files import REUSED_FOLDER
from blendserve_core.requests import RequestTable


@dataclass(frozen=True, slots=True)
class AllRequests:
    """Every row and sample that can be served. ``draw_key`` [R] stands for its random draws, wherever the row stands, and is 0
    where there are none; ``is_repeatable`` [R] says that equal work gives equal outcomes."""

    table: RequestTable
    draw_key: NDArray[np.uint64]
    is_repeatable: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class WorkItems:
    """What is left to generate, and how many outcomes come without being generated."""

    requests: RequestTable
    num_duplicates: int
    num_reused: int


def part_work(everything: AllRequests, earlier: EarlierOutput | None, folder: Path) -> WorkItems:
    """Save into ``folder`` the requests to generate, duplicates, outcomes of ``earlier`` that fit, and all rows' digests."""
    table = everything.table
    digests = work_digests(table, everything.draw_key)
    StagedRows(table.row, table.sample_index, digests, table.sampling.response_format).save(folder)
    first = first_of_equals(digests, everything.is_repeatable)
    duplicates = Duplicates.among(table, first)
    duplicates.save(folder)
    kept = np.flatnonzero(first == np.arange(len(first)))
    distinct = table.take(kept)
    is_reused = np.zeros(len(kept), dtype=np.bool_)
    if earlier is not None:
        is_reused = take_over(earlier, distinct, digests[kept], folder / REUSED_FOLDER)
    requests = distinct.take(np.flatnonzero(~is_reused))
    requests.save(folder)
    return WorkItems(requests, duplicates.num_duplicates, int(is_reused.sum()))
