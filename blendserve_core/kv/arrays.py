"""The state of KV memory as flat arrays. The compiled operations of this folder work on them; nothing else changes them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blendserve_core.kv.segments import Segments

NOT_WAITING = np.iinfo(np.int64).max

STATE = np.dtype(
    [
        ("page_size", np.int64),
        ("num_free", np.int64),
        ("num_idle_pages", np.int64),
        ("num_idle", np.int64),
        ("num_keyed", np.int64),
        ("num_tails", np.int64),
        ("num_copies", np.int64),
    ],
    align=True,
)

SEGMENT = np.dtype(
    [
        ("first_page", np.int64),
        ("position_start", np.int64),
        ("position_end", np.int64),
        ("next_use", np.int64),
        ("writer", np.int64),
        ("tail_step", np.int64),
        ("parent", np.int32),
        ("start", np.int32),
        ("end", np.int32),
        ("num_tail_tokens", np.int32),
        ("num_filled", np.int32),
        ("num_users", np.int32),
        ("num_unfinished", np.int32),
        ("idle_place", np.int32),
    ],
    align=True,
)

REQUEST = np.dtype([("position", np.int64), ("rank", np.int64), ("segment", np.int64)], align=True)


class KvArrays(NamedTuple):
    """Page pool and prefix cache. P = pages, S = segments, R = requests of the table.

    state         [1] STATE: counts, and the page size
    free_pages    [P] int32 stack, its first ``num_free`` entries
    num_holders   [P] int32; a page without a holder is free
    scratch       [P] int32 pages on their way from one place to another
    segments      [S] SEGMENT: see ``Segments``; which part of each is ``num_filled``, by how many running requests it is used,
                  by how many unfinished ones it is wanted, and the running request that is computing it (``writer``, or -1)
    segment_pages int32; a segment's pages start at its ``first_page``
    tail_pages    [S] int32 page with a segment's tail, computed in ``tail_step``, or -1
    idle          [S] int32 segments with pages and without users, its first ``num_idle`` entries; see ``idle.py``
    path          int32 room for the longest path from the top of the tree to a request
    requests      [R] REQUEST: place in the tree's order, place in the planned order, deepest segment or -1
    waiting_rank  [R] int64 by place in the tree's order: place in the planned order, NOT_WAITING unless it waits
    copies        [3, max_copies] int32 source page, destination page and number of tokens to copy before the step
    """

    state: NDArray[Any]
    free_pages: NDArray[np.int32]
    num_holders: NDArray[np.int32]
    scratch: NDArray[np.int32]
    segments: NDArray[Any]
    segment_pages: NDArray[np.int32]
    tail_pages: NDArray[np.int32]
    idle: NDArray[np.int32]
    path: NDArray[np.int32]
    requests: NDArray[Any]
    waiting_rank: NDArray[np.int64]
    copies: NDArray[np.int32]


def empty_kv(
    segments: Segments,
    request_order: NDArray[np.int64],
    rank: NDArray[np.int64],
    *,
    num_pages: int,
    page_size: int,
    max_copies: int,
) -> KvArrays:
    """All pages free, nothing cached. ``request_order`` is the tree's; ``rank[request]`` its place in the planned order,
    NOT_WAITING outside it."""
    state = np.zeros(1, dtype=STATE)
    state["page_size"], state["num_free"] = page_size, num_pages
    records = _segment_records(segments, page_size)
    requests = np.zeros(len(request_order), dtype=REQUEST)
    requests["position"][request_order] = np.arange(len(request_order))
    requests["rank"], requests["segment"] = rank, segments.of_request
    num_segment_pages = int(((segments.end - segments.start) // page_size).sum(dtype=np.int64))
    return KvArrays(
        state=state,
        free_pages=np.arange(num_pages - 1, -1, -1, dtype=np.int32),
        num_holders=np.zeros(num_pages, dtype=np.int32),
        scratch=np.zeros(num_pages, dtype=np.int32),
        segments=records,
        segment_pages=np.full(num_segment_pages, -1, dtype=np.int32),
        tail_pages=np.full(len(records), -1, dtype=np.int32),
        idle=np.zeros(len(records), dtype=np.int32),
        path=np.zeros(_depth(segments.parent), dtype=np.int32),
        requests=requests,
        waiting_rank=rank[request_order],
        copies=np.zeros((3, max_copies), dtype=np.int32),
    )


def _segment_records(segments: Segments, page_size: int) -> NDArray[Any]:
    records = np.zeros(segments.num_segments, dtype=SEGMENT)
    for name in ("position_start", "position_end", "parent", "start", "end", "num_tail_tokens"):
        records[name] = getattr(segments, name)
    num_pages = (segments.end - segments.start) // page_size
    records["first_page"] = np.cumsum(num_pages, dtype=np.int64) - num_pages
    records["num_unfinished"] = segments.num_requests
    records["writer"] = records["idle_place"] = -1
    return records


def _depth(parent: NDArray[np.int32]) -> int:
    """Segments on the longest path. Each round goes one level up from every segment that is not at the top yet."""
    depth, above = 0, np.arange(len(parent))
    while len(above):
        depth += 1
        above = parent[above]
        above = np.unique(above[above >= 0])
    return depth
