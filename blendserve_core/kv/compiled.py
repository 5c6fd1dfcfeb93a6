"""How the scheduler's hot path is compiled."""

from __future__ import annotations

from pathlib import Path

import numba

compiled = numba.njit(cache=True, error_model="numpy")
"""A function over arrays, compiled once per machine. Nobody divides by zero here: checking it would take longer to compile."""

compiled_inline = numba.njit(cache=True, error_model="numpy", inline="always")
"""For few lines in a loop over rows: a call would count references to all the arrays that it is given."""


def drop_stale_code(folders: list[Path]) -> None:
    """Remove compiled code that is older than any source file in ``folders``.

    A function is compiled together with those it calls, but its cache is checked against its own file only.
    """
    sources = [source.stat().st_mtime for folder in folders for source in folder.glob("*.py")]
    for folder in folders:
        for index in (folder / "__pycache__").glob("*.nbi"):
            if index.stat().st_mtime < max(sources):
                index.unlink(missing_ok=True)


_CORE = Path(__file__).parents[1]
drop_stale_code([_CORE / "kv", _CORE / "schedule"])
