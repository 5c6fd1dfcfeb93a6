"""A look into the published generations, whether one file or a folder of part files."""

from __future__ import annotations

import numpy as np
import pyarrow.dataset as ds

from schemas.manifest import Manifest

LOOK_AT_MOST = 10_000


def sample_texts(manifest: Manifest, num_rows: int) -> list[tuple[int, str]]:
    """Row number and output text of a few of the first rows, from the shortest output to the longest.

    An error stands for a text that is missing.
    """
    dataset = ds.dataset(manifest.generations, format="parquet")
    rows = dataset.head(LOOK_AT_MOST, columns=["num_output_tokens", "output_text", "error"])
    by_length = np.argsort(rows["num_output_tokens"].fill_null(0).to_numpy(), kind="stable")
    chosen = by_length[np.linspace(0, len(by_length) - 1, min(num_rows, len(by_length))).astype(np.int64)]
    texts = rows.take(chosen).to_pylist()
    return [
        (row, text["output_text"] if text["error"] is None else f"[error: {text['error']['message']}]")
        for row, text in zip(chosen.tolist(), texts, strict=True)
    ]
