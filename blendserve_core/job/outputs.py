"""A look into the published generations, whether one file or a folder of part files."""

from __future__ import annotations

from collections import Counter

import pyarrow.dataset as ds

from schemas.manifest import Manifest

LOOK_AT_MOST = 10_000


def count_outcomes(manifest: Manifest) -> Counter[str]:
    """Rows by finish reason, the most frequent first."""
    counts: Counter[str] = Counter()
    for batch in ds.dataset(manifest.generations, format="parquet").to_batches(columns=["finish_reason"]):
        for entry in batch.column(0).value_counts().to_pylist():
            counts[entry["values"]] += entry["counts"]
    return Counter(dict(counts.most_common()))


def sample_texts(manifest: Manifest, num_rows: int) -> list[tuple[int, str]]:
    """Row number and output text of rows spread over the beginning; an error stands for a text that is missing."""
    dataset = ds.dataset(manifest.generations, format="parquet")
    num_wanted = min(num_rows, manifest.num_rows)
    rows = [position * min(manifest.num_rows, LOOK_AT_MOST) // num_wanted for position in range(num_wanted)]
    texts = dataset.take(rows, columns=["output_text", "error"]).to_pylist()
    return [(row, text["output_text"] or f"[{text['error']}]") for row, text in zip(rows, texts, strict=True)]
