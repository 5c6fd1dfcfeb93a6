"""The paper's evaluation on the simulated executor: ``python benchmarks/evaluate.py [--output FOLDER]``.

Results are kept as they come, so that a run can be stopped and gone on with; those of other code are run again. What matters
most runs first, and after ``--minutes`` no further case is begun: the report then says what is missing. FULL=1 takes 400,000
requests everywhere and has no time limit.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from evaluate_cases import FULL, Sizes, all_cases, chunk_cases, with_best_chunk
from evaluate_report import write_report
from evaluate_run import best_chunks, run_all

DEFAULT_MINUTES = 27.0
"""Leaves three of half an hour for the cases that are running then."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/evaluation"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, help=f"default: {DEFAULT_MINUTES:.0f}, without a limit for FULL=1")
    parser.add_argument("--scale", type=float, default=1.0, help="share of requests and lengths, to try the script")
    arguments = parser.parse_args()
    is_full = os.environ.get("FULL") == "1"
    sizes = FULL if is_full else Sizes()
    if arguments.scale != 1:
        sizes = sizes.scaled(arguments.scale)
    limit = arguments.minutes or (float("inf") if is_full else DEFAULT_MINUTES)
    print(evaluate(sizes, arguments.output, arguments.processes, time.monotonic() + 60 * limit))


def evaluate(sizes: Sizes, folder: Path, num_processes: int, deadline: float) -> Path:
    """Run what is missing until ``deadline`` (of ``time.monotonic``), and write the report; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.jsonl"
    # The baselines' best chunk sizes must be known before anything else runs, so this much is run in any case.
    searched = run_all(chunk_cases(sizes), path, num_processes)
    best = best_chunks(searched)
    cases = [with_best_chunk(case, best) for case in all_cases(sizes)]
    rows = run_all(cases, path, num_processes, deadline)
    return write_report(searched + rows, len(cases) - len(rows), folder)


if __name__ == "__main__":
    main()
