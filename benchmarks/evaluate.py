"""The paper's evaluation on the simulated executor: ``python benchmarks/evaluate.py [--output FOLDER]``.

Results are kept as they come, so that a run can be stopped and gone on with; delete the folder to start afresh. FULL=1 takes
400,000 requests everywhere and three seeds.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from evaluate_cases import FULL, Sizes, all_cases
from evaluate_report import write_report
from evaluate_run import run_all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/evaluation"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0, help="share of requests and lengths, to try the script")
    arguments = parser.parse_args()
    sizes = FULL if os.environ.get("FULL") == "1" else Sizes()
    if arguments.scale != 1:
        sizes = sizes.scaled(arguments.scale)
    arguments.output.mkdir(parents=True, exist_ok=True)
    rows = run_all(all_cases(sizes), arguments.output / "results.jsonl", arguments.processes)
    print(write_report(rows, arguments.output))


if __name__ == "__main__":
    main()
