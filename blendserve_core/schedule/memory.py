"""Pages for the running sequences: shared prefixes come from the cache, everything else is a sequence's own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blendserve_core.kv.arrays import empty_kv
from blendserve_core.kv.prefix_cache import forget
from blendserve_core.kv.segments import Segments
from blendserve_core.schedule.admit import admit
from blendserve_core.schedule.advance import advance, end_rows, see_newest
from blendserve_core.schedule.grow import continue_prefills, grow_decodes
from blendserve_core.schedule.running import Running
from blendserve_core.schedule.step import Capacity


class Memory:
    """Owns the page pool and the prefix cache; gives rows of ``Running`` their pages and takes them back."""

    def __init__(
        self,
        segments: Segments,
        request_order: NDArray[np.int64],
        rank: NDArray[np.int64],
        capacity: Capacity,
        running: Running,
    ) -> None:
        self._page_size = capacity.page_size
        self._running = running
        self._kv = empty_kv(
            segments,
            request_order,
            rank,
            num_pages=capacity.num_pages,
            page_size=capacity.page_size,
            max_copies=capacity.max_sequences,
        )
        self._state = self._kv.state[0]

    @property
    def num_available_pages(self) -> int:
        """Pages that are free, or hold only idle cache."""
        return int(self._state["num_free"]) + int(self._state["num_idle_pages"])

    @property
    def copies(self) -> NDArray[np.int32]:
        """[3, num_copies] source page, destination page and number of tokens to copy before the step."""
        return self._kv.copies[:, : self._state["num_copies"]].copy()

    def grow_decodes(self) -> tuple[int, int] | None:
        """One new token for every row with one to go: (decodes, KV tokens they read). None, and none, if pages are short."""
        running = self._running
        running.reserve(running.num, running.num)
        num_decodes, num_tokens_read = grow_decodes(running.num, *self._kv, *running.arrays)
        return None if num_decodes < 0 else (num_decodes, num_tokens_read)

    def continue_prefills(self, budget: int, step: int) -> tuple[int, int]:
        """Go on with begun prompts, oldest first: (budget left, prompt tokens that still wait for a later step)."""
        running = self._running
        running.reserve(running.num, running.num + budget // self._page_size)
        return continue_prefills(running.num, budget, step, *self._kv, *running.arrays)

    def admit(
        self,
        request: int,
        prompt: tuple[int, int],
        num_outputs: int,
        max_outputs: int,
        budget: int,
        num_promised: int,
        step: int,
    ) -> tuple[int, int]:
        """Make a request the last running row, if it fits beside ``num_promised`` tokens of begun prompts.

        ``prompt`` is its start in the token store and its length. Returns (new tokens in this step, tokens found in the cache),
        and no new tokens where it must wait.
        """
        running = self._running
        running.reserve(1, 1 + (prompt[1] + num_outputs) // self._page_size)
        num_new, num_cached = admit(
            request, *prompt, num_outputs, max_outputs, running.num, budget, num_promised, step, *self._kv, *running.arrays
        )
        running.num += num_new > 0
        return num_new, num_cached

    def advance(self, rows: NDArray[np.int64], is_sampled: NDArray[np.bool_], token_ids: NDArray[np.int32]) -> None:
        """The step has run: its ``rows`` have computed their new tokens, and the sampled ones got ``token_ids``."""
        self._running.reserve(len(token_ids), len(token_ids))
        advance(rows, is_sampled, token_ids, *self._kv, *self._running.arrays)

    def see_newest(self, rows: NDArray[np.int64], token_ids: NDArray[np.int32]) -> None:
        """The newest output of each of the ``rows`` is known now."""
        see_newest(rows, token_ids, *self._running.arrays)

    def end(self, rows: NDArray[np.int64], *, is_finished: bool) -> None:
        """Remove rows and take back their own pages, and their hold on the shared ones."""
        end_rows(self._running.num, rows, is_finished, *self._kv, *self._running.arrays)
        self._running.num -= len(rows)

    def forget(self, request: int) -> None:
        """A waiting request will never run."""
        forget(request, *self._kv)
