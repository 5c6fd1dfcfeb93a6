"""The compiled cache does what its plain twin does, page for page, whatever runs, ends, is retracted or evicted."""

import numpy as np
from compiled_cache import CompiledKv
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_cache import NaiveCache, NaivePool
from request_prompts import table_of

from blendserve_core.kv.segments import shared_segments
from blendserve_core.plan.build_tree import build_tree

NUM_PAGES = 24


class Pair:
    """Both caches, told the same; every answer is compared."""

    def __init__(self, prompts: list[list[int]], page_size: int) -> None:
        tree, rank = build_tree(table_of(prompts)), np.arange(len(prompts))
        segments = shared_segments(tree, rank, page_size)
        self.page_size = page_size
        self.compiled = CompiledKv(segments, NUM_PAGES, page_size, tree.request_order, rank)
        self.pool = NaivePool(NUM_PAGES)
        self.naive = NaiveCache(segments, self.pool, page_size, tree.request_order, rank)
        self.rows: dict[int, np.ndarray] = {}

    def start(self, request: int, num_tokens: int, step: int) -> bool:
        """Enter a request and compute its first ``num_tokens``; False if it has to wait."""
        match, naive = self.compiled.match(request, step), self.naive.match(request, step)
        assert (match is None) == (naive is None)
        if match is None or naive is None:
            return False
        assert (match.num_tokens, match.tail_page, match.num_tail_tokens) == (
            naive.num_tokens, naive.tail_page, naive.num_tail_tokens,
        )  # fmt: skip
        assert match.pages.tolist() == naive.pages.tolist()
        self.compiled.enter(request)
        self.naive.enter(request)
        end = max(num_tokens, match.num_tokens)
        num_new = -(-end // self.page_size) - len(match.pages)
        self.rows[request] = match.pages
        if not self.evict(num_new):
            self.stop(request, is_finished=False)
            return False
        pages = self.compiled.allocate(num_new)
        assert pages.tolist() == self.pool.allocate(num_new).tolist()
        self.rows[request] = np.concatenate([match.pages, pages])
        for cache in (self.compiled, self.naive):
            cache.fill(request, match.num_tokens, end, pages)
            cache.remember_tails(request, match.num_tokens, end, self.rows[request], step)
        return True

    def stop(self, request: int, *, is_finished: bool) -> None:
        own = self.rows.pop(request)[self.naive.private_start(request) // self.page_size :]
        self.compiled.release(own)
        self.pool.release(own)
        self.compiled.leave(request, is_finished=is_finished)
        self.naive.leave(request, is_finished=is_finished)

    def forget(self, request: int) -> None:
        self.compiled.finish(request)
        self.naive.finish(request)

    def evict(self, num_pages: int) -> bool:
        can = self.compiled.evict(num_pages)
        assert can == self.naive.evict(num_pages)
        return can

    def check(self) -> None:
        assert self.compiled.num_free == self.pool.num_free
        assert self.compiled.num_idle_pages == self.naive.num_idle_pages
        num_free = self.pool.num_free
        assert self.compiled.kv.free_pages[:num_free].tolist() == self.pool._free[:num_free].tolist()


ACTIONS = st.lists(st.tuples(st.sampled_from("sssserrfv"), st.integers(0, 11), st.integers(1, 30)), max_size=60)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 500), page_size=st.sampled_from([1, 2, 4]), actions=ACTIONS)
def test_compiled_and_plain_cache_agree(seed, page_size, actions):
    rng = np.random.default_rng(seed)
    trunk = rng.integers(0, 50, size=20).tolist()
    prompts = [trunk[: rng.integers(0, 20)] + rng.integers(50, 53, size=rng.integers(1, 8)).tolist() for _ in range(12)]
    pair, waiting = Pair(prompts, page_size), set(range(12))
    for step, (action, request, number) in enumerate(actions):
        if action == "s" and request in waiting:
            if pair.start(request, min(number, len(prompts[request])), step):
                waiting.remove(request)
        elif action in "er" and request in pair.rows:
            pair.stop(request, is_finished=action == "e")
            if action == "r":
                waiting.add(request)
        elif action == "f" and request in waiting:
            pair.forget(request)
            waiting.remove(request)
        elif action == "v":
            pair.evict(number % NUM_PAGES)
        pair.check()
