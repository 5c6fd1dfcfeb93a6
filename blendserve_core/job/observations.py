"""Output lengths seen so far in a job, for the estimates of what is to come."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from blendserve_core.data.parts import read_parts
from blendserve_core.plan.lengths import Observations
from blendserve_core.requests import RequestTable
from blendserve_core.shard.unfinished import load_unfinished
from schemas.arrow import GENERATION_SCHEMA

OBSERVED_COLUMNS = ["row", "sample_index", "finish_reason", "num_output_tokens"]
OBSERVED_SCHEMA = pa.schema([GENERATION_SCHEMA.field(name) for name in OBSERVED_COLUMNS])


def observe_outputs(requests: RequestTable, engine_folders: list[Path]) -> Observations:
    """Lengths of the outputs that earlier engines finished, and how far those got that they left unfinished."""
    finished, num_tokens = _finished_lengths(requests, engine_folders)
    outputs = load_unfinished(engine_folders)
    unfinished = np.setdiff1d(np.fromiter(outputs, np.int64, len(outputs)), finished)
    ages = np.array([len(outputs[request]) for request in unfinished.tolist()], dtype=np.int32)
    return Observations(
        request=np.concatenate([finished, unfinished]),
        num_tokens=np.concatenate([num_tokens, ages]),
        is_finished=np.arange(len(finished) + len(unfinished)) < len(finished),
    )


def read_outputs(engine_folders: list[Path]) -> pa.Table:
    """Rows that engines finished, without errors, as columns of ``OBSERVED_SCHEMA``."""
    batches = list(read_parts(engine_folders, OBSERVED_COLUMNS))
    return pa.Table.from_batches(batches, OBSERVED_SCHEMA).filter(pc.field("finish_reason") != "error")


def request_indices(requests: RequestTable, row: NDArray[np.int64], sample_index: NDArray[np.int32]) -> NDArray[np.int64]:
    """Index of each (row, sample_index) in the table, -1 where it is not there."""
    # The table is sorted by both, so that they can be searched for as one number.
    num_samples = int(max(requests.sample_index.max(initial=0), sample_index.max(initial=0))) + 1
    keys = requests.row * num_samples + requests.sample_index
    wanted = row * num_samples + sample_index
    index = np.searchsorted(keys, wanted)
    is_here = np.append(keys, -1)[index] == wanted
    return np.where(is_here, index, -1)


def _finished_lengths(requests: RequestTable, engine_folders: list[Path]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    rows = read_outputs(engine_folders)
    request = request_indices(requests, rows["row"].to_numpy(), rows["sample_index"].to_numpy())
    return request, rows["num_output_tokens"].to_numpy().astype(np.int32)
