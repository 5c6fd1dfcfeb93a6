"""After a crash: finished rows that were on their way become a part file, and damaged part files stop counting."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from blendserve_core.data.journal import JOURNAL_FILE, read_journal
from blendserve_core.data.parts import finished_keys, part_paths, write_part

logger = logging.getLogger(__name__)


def recover(folder: Path) -> bool:
    """Put an engine's folder in order after its engine ended, however it did; nobody else may write there meanwhile.

    Returns whether rows are lost that were finished: then what the engine said at its end no longer holds.
    """
    damaged = [path for path in part_paths([folder]) if not _is_whole(path)]
    for path in damaged:
        logger.warning("%s is damaged; its rows are generated again", path)
        path.replace(path.with_name(f".damaged-{path.name}"))
    rows = _not_in_parts(folder, read_journal(folder))
    if rows.num_rows:
        write_part(folder, rows)
    (folder / JOURNAL_FILE).unlink(missing_ok=True)
    return bool(damaged)


def _is_whole(path: Path) -> bool:
    """Whether a part can be read to its end and no page changed since it was written."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as part:
            for _ in part.iter_batches():
                pass
    except (pa.ArrowException, OSError):
        return False
    return True


def _not_in_parts(folder: Path, rows: pa.Table) -> pa.Table:
    """A writer that dies between its part and its journal leaves rows in both."""
    keys, samples = finished_keys([folder])
    in_parts = set(zip(keys.tolist(), samples.tolist(), strict=True))
    pairs = zip(rows["row"].to_pylist(), rows["sample_index"].to_pylist(), strict=True)
    return rows.filter(pa.array([pair not in in_parts for pair in pairs], pa.bool_()))
