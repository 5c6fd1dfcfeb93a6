"""What a finished step changes: tokens are computed, outputs appended, pages given back. Arguments as in ``grow.py``."""

from __future__ import annotations

from blendserve_core.kv.block_lists import BLOCK, read
from blendserve_core.kv.compiled import compiled
from blendserve_core.kv.pages import release_page, release_pages
from blendserve_core.kv.prefix_cache import leave
from blendserve_core.schedule.grow import unpack_all
from blendserve_core.schedule.running import append_outputs, drop_rows, unpack


@compiled
def advance(step_rows, is_sampled, token_ids, *arrays):
    """The step has run: its rows have computed their new tokens, and the sampled ones got ``token_ids``, in step order."""
    kv, running, store = unpack_all(arrays)
    for i in range(kv.state[0].num_copies):
        # Until now the source was held, so that nothing else could be written into it.
        release_page(kv, kv.copies[0, i])
    kv.state[0].num_copies = 0
    _count_computed(running, step_rows)
    append_outputs(running, store, step_rows[is_sampled], token_ids)


@compiled
def see_newest(rows, token_ids, *arrays):
    """The newest output of each row, which stood there unseen, is known. ``arrays`` are those of ``Running``."""
    running, store = unpack(arrays)
    for i in range(len(rows)):
        row = rows[i]
        store.values[running.rows[row].last_output_block, (running.num_outputs[row] - 1) % BLOCK] = token_ids[i]


@compiled
def _count_computed(running, step_rows):
    num_computed, num_new = running.num_computed, running.num_new
    for row in step_rows:
        num_computed[row] += num_new[row]


@compiled
def end_rows(num_running, ended, is_finished, *arrays):
    """Take back the rows' own pages and their hold on the shared ones, then remove the rows, listed in ascending order."""
    kv, running, store = unpack_all(arrays)
    for row in ended:
        columns = running.rows[row]
        num_own = columns.num_pages - columns.first_private_page
        read(store, columns.first_page_block, columns.first_private_page, columns.num_pages, kv.scratch, 0)
        release_pages(kv, kv.scratch, 0, num_own)
        leave(kv, running.seq_ids[row], is_finished)
    drop_rows(running, store, num_running, ended)
