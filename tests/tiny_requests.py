"""A request file that tiny engines finish in a moment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

QUESTIONS = ["What is a list?", "What is a dict?", "What is a set?", "Say yes or no.", "Say a word.", "Count to three."]
MANNERS = ("brief", "kind")


def write_requests(path: Path, manners: Sequence[str] = MANNERS) -> Path:
    """Six short prompts for each manner, twelve in all, that share beginnings, with a column of the user's own."""
    prompts = [f"You are {manner}. {question}" for manner in manners for question in QUESTIONS]
    pq.write_table(pa.table({"prompt": prompts, "topic": [number % 3 for number in range(len(prompts))]}), path)
    return path
