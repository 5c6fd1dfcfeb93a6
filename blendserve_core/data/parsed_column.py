"""The published ``parsed`` column of a job: for rows with a JSON format the value of their text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from blendserve_core.data.row_digests import StagedRows
from blendserve_core.requests import load_response_formats
from blendserve_core.structured.parsed import Shape, parse_texts, parsed_shape


@dataclass(frozen=True, slots=True)
class ParsedColumn:
    """``json_rows`` are the input rows with a JSON format, sorted. Without a shape there is no column."""

    shape: Shape | None
    json_rows: NDArray[np.int64]

    @classmethod
    def of_staged(cls, staged: Path) -> ParsedColumn:
        formats = load_response_formats(staged)
        rows = StagedRows.load(staged)
        json_formats = [i for i, response_format in enumerate(formats) if response_format.is_json]
        return cls(parsed_shape(formats), np.unique(rows.row[np.isin(rows.response_format, json_formats)]))

    @property
    def data_type(self) -> pa.DataType | None:
        return None if self.shape is None else self.shape.data_type

    def values(self, rows: NDArray[np.int64], texts: Sequence[str | None]) -> pa.Array:
        """The column for some outcomes: their input rows and texts."""
        assert self.shape is not None, "no format of the job is JSON"
        is_json = np.isin(rows, self.json_rows)
        return parse_texts([text if wanted else None for text, wanted in zip(texts, is_json, strict=True)], self.shape)
