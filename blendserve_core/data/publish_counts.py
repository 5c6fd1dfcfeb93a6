"""What publishing wrote, counted as it passes, and reconciled with the input before anything appears."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from blendserve_core.data.outcomes import ORIGIN_FIELD, Origin
from blendserve_core.data.row_digests import StagedRows
from schemas.manifest import PublishCounts

_KINDS = ("prompt", "cached", "output")


class OutcomeCounter:
    """Counts outcomes that come in input order, and collects their digests."""

    def __init__(self, rows: StagedRows) -> None:
        self._rows = rows
        self._published: list[NDArray[np.uint64]] = []
        self._num_input_rows = 0
        self._reasons: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._origins: Counter[int] = Counter()
        self._tokens = {f"num_{of}{kind}_tokens": 0 for of in ("", "served_") for kind in _KINDS}

    @property
    def digests(self) -> NDArray[np.uint64]:
        """[num_rows, 2] digest of every row that passed, in order."""
        return np.concatenate([np.zeros((0, 2), dtype=np.uint64), *self._published])

    def add(self, outcomes: pa.Table) -> None:
        """Outcomes of some input rows; those of one row never come apart."""
        rows, samples = outcomes.column("row").to_numpy(), outcomes.column("sample_index").to_numpy()
        self._published.append(self._rows.digests_of(rows, samples))
        self._num_input_rows += len(np.unique(rows))
        self._reasons.update(_value_counts(outcomes.column("finish_reason")))
        self._errors.update(_value_counts(outcomes.column("error").flatten()[0]))
        self._origins.update(_value_counts(outcomes.column(ORIGIN_FIELD.name)))
        is_computed = outcomes.column(ORIGIN_FIELD.name).to_numpy() == Origin.COMPUTED
        for kind in _KINDS:
            tokens = outcomes.column(f"num_{kind}_tokens").fill_null(0).to_numpy()
            self._tokens[f"num_{kind}_tokens"] += int(tokens.sum(dtype=np.int64))
            self._tokens[f"num_served_{kind}_tokens"] += int(tokens[is_computed].sum(dtype=np.int64))

    def reconciled(self, num_input_rows: int, num_outcomes: int, num_surplus: int) -> PublishCounts:
        """The counts. Raises ValueError unless every input row and every outcome has passed once."""
        num_rows = self._reasons.total()
        if (self._num_input_rows, num_rows) != (num_input_rows, num_outcomes):
            raise ValueError(
                f"the output does not match the input: {self._num_input_rows} of {num_input_rows} input rows have outcomes, "
                f"and there are {num_rows} output rows where {num_outcomes} are owed. Nothing was published; "
                "--fresh runs the job anew."
            )
        return PublishCounts(
            num_rows=num_rows,
            outcomes=dict(self._reasons.most_common()),
            errors=dict(self._errors.most_common()),
            num_errors=self._reasons["error"],
            num_duplicate_rows=self._origins[Origin.DUPLICATE],
            num_reused_rows=self._origins[Origin.REUSED],
            num_surplus=num_surplus,
            **self._tokens,
        )


def _value_counts(column: pa.ChunkedArray) -> dict[Any, int]:
    counts = {entry["values"]: entry["counts"] for entry in column.value_counts().to_pylist()}
    counts.pop(None, None)
    return counts
