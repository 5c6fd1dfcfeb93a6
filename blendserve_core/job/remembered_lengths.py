"""Output lengths of finished jobs, kept for later jobs over the same rows and model, whatever else those change."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from blendserve_core.data.durable import written_whole
from blendserve_core.job.job import Job
from blendserve_core.job.observations import read_outputs, request_indices
from blendserve_core.plan.lengths import Observations
from blendserve_core.requests import RequestTable

logger = logging.getLogger(__name__)

SCHEMA = pa.schema(
    [("row", pa.int64()), ("sample_index", pa.int32()), ("num_output_tokens", pa.int32()), ("is_finished", pa.bool_())]
)
MAX_OUTPUTS = 1 << 20
MAX_FILES = 64
# Outputs that were cut short tell little of a job that lets them run on: with too many of them a new sample is better.
MIN_SHARE_KNOWN = 0.9


def lengths_path(job: Job) -> Path:
    """``$XDG_CACHE_HOME/blendserve/lengths/<digest of rows and model>.parquet``."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "blendserve" / "lengths" / f"{job.lengths_key}.parquet"


def remember_lengths(job: Job) -> None:
    """Keep how long the outputs of a finished job were. A cache that cannot be written costs a line in the log, no more."""
    path = lengths_path(job)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as temporary:
            pq.write_table(_telling_outputs(job), temporary)
        _forget_oldest(path.parent)
    except OSError as error:
        logger.warning("Output lengths are not kept for later jobs: %s", error)


def recall_lengths(job: Job, requests: RequestTable) -> Observations:
    """What an earlier job left of these requests: nothing where there was none, or where most outputs were cut short."""
    path = lengths_path(job)
    if not path.exists():
        return Observations.none()
    try:
        outputs = pq.read_table(path).select(SCHEMA.names).cast(SCHEMA).drop_null()
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        logger.warning("Output lengths of an earlier job are left aside, as %s cannot be read: %s", path, error)
        return Observations.none()
    seen = _observations(requests, outputs)
    is_known = seen.is_finished | (seen.num_tokens >= requests.sampling.max_tokens[seen.request])
    return seen if len(is_known) and is_known.mean() >= MIN_SHARE_KNOWN else Observations.none()


def _telling_outputs(job: Job) -> pa.Table:
    """Outputs that ended by themselves or at their limit, evenly thinned where there are very many."""
    requests = RequestTable.load(job.workspace.staged)
    outputs = read_outputs(job.workspace.engine_folders)
    request = request_indices(requests, outputs["row"].to_numpy(), outputs["sample_index"].to_numpy())
    # A row that had to go on to its limit does not tell where it would have ended.
    telling = np.flatnonzero(~requests.sampling.ignore_eos[request])
    if len(telling) > MAX_OUTPUTS:
        telling = telling[np.linspace(0, len(telling) - 1, MAX_OUTPUTS).astype(np.int64)]
    is_finished = pc.equal(outputs["finish_reason"], "stop")  # pyright: ignore[reportAttributeAccessIssue]
    return outputs.append_column("is_finished", is_finished).select(SCHEMA.names).take(telling)


def _observations(requests: RequestTable, outputs: pa.Table) -> Observations:
    request = request_indices(requests, outputs["row"].to_numpy(), outputs["sample_index"].to_numpy())
    num_tokens = outputs["num_output_tokens"].to_numpy()
    is_here = (request >= 0) & (num_tokens > 0)
    return Observations(request[is_here], num_tokens[is_here], outputs["is_finished"].to_numpy()[is_here])


def _forget_oldest(folder: Path) -> None:
    by_age = sorted(folder.glob("*.parquet"), key=lambda path: path.stat().st_mtime)
    for path in by_age[:-MAX_FILES]:
        path.unlink(missing_ok=True)
