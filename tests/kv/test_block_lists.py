"""Block lists against plain lists."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from blendserve_core.kv.block_lists import BLOCK, append, discard, doubled, empty_store, read

actions = st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 3 * BLOCK)), max_size=30)


@settings(max_examples=60, deadline=None)
@given(actions=actions)
def test_lists_keep_their_numbers_while_others_grow_and_go(actions):
    store = empty_store(2)
    plain: list[list[int]] = [[] for _ in range(4)]
    ends = [[0, 0] for _ in range(4)]
    for which, count in actions:
        if count < 0:
            discard(store, *ends[which], len(plain[which]))
            plain[which] = []
        while count > 0 and store.free[1] < count // BLOCK + 1:
            store = doubled(store)
        for value in range(count):
            ends[which][1] = append(store, ends[which][1], len(plain[which]), value + 1000 * which)
            if not plain[which]:
                ends[which][0] = ends[which][1]
            plain[which].append(value + 1000 * which)
        for (first, _), values in zip(ends, plain, strict=True):
            start = len(values) // 3
            out = np.zeros(len(values) - start + 1, dtype=np.int32)
            read(store, first, start, len(values), out, 1)
            assert out[1:].tolist() == values[start:]
    num_used = sum(-(-len(values) // BLOCK) for values in plain)
    assert store.free[1] == len(store.values) - num_used
