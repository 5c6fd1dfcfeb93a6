"""Peak memory of staging and of publishing a million short rows, each measured in a process of its own.

``python benchmarks/data_memory.py --rows 1000000`` prints one line per stage: rows, seconds, and the peak of resident memory
beside the process's size before its first row. Memory that streams hardly grows from ``--rows 250000`` to four times as many.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from blendserve_core.data.openai.output import write_batch_files
from blendserve_core.data.openai.responses import Job
from blendserve_core.data.parts import Generation, PartWriter
from blendserve_core.data.publish import publish
from blendserve_core.data.source import open_source
from blendserve_core.data.stage import stage
from blendserve_core.engine.model.folder import resolve_model
from blendserve_core.requests import RequestTable
from blendserve_core.text.tokenizer import PromptTokenizer
from schemas.parameters import JobParameters

CONTEXT_TOKENS = 8192
OUTPUT_TOKENS = 24
PART_ROWS = 4096


def make_requests(folder: Path, num_rows: int) -> None:
    """Write rows of the batch format, line by line."""
    with (folder / "requests.jsonl").open("w", encoding="utf-8") as file:
        for row in range(num_rows):
            body = {
                "prompt": f"Question {row}: what is the capital of region {row % 997}? Answer:",
                "max_tokens": OUTPUT_TOKENS,
            }
            file.write(json.dumps({"custom_id": f"id-{row}", "url": "/v1/completions", "body": body}) + "\n")


def stage_rows(folder: Path) -> None:
    parameters = JobParameters(requests=str(folder / "requests.jsonl"), output=str(folder))
    tokenizer = PromptTokenizer.load(resolve_model("demo"))
    stage(parameters, open_source(parameters), tokenizer, CONTEXT_TOKENS, folder / "staged")


def answer_rows(folder: Path) -> None:
    """Part files as engines would leave them, in an order unlike the input's."""
    requests = RequestTable.load(folder / "staged")
    with PartWriter(folder / "engine", max_rows=PART_ROWS) as parts:
        for start in range(0, requests.num_requests, PART_ROWS):
            parts.extend(_outcomes(requests, range(start, min(start + PART_ROWS, requests.num_requests))))


def _outcomes(requests: RequestTable, chosen: range) -> Iterator[Generation]:
    for i in chosen:
        request = requests.num_requests - 1 - i
        row, num_prompt = int(requests.row[request]), int(requests.num_prompt_tokens[request])
        yield Generation(row, 0, f"The capital of {row}.", [7] * OUTPUT_TOKENS, "length", num_prompt, 0, OUTPUT_TOKENS)


def publish_rows(folder: Path) -> None:
    publish(folder / "staged", [folder / "engine"], folder / "generations.parquet")


def render_rows(folder: Path) -> None:
    job = Job("demo", 0, "fingerprint", str)
    write_batch_files(folder / "generations.parquet", folder / "out.jsonl", folder / "errors.jsonl", job)


STAGES: dict[str, Callable[[Path], None]] = {
    "stage": stage_rows,
    "answer": answer_rows,
    "publish": publish_rows,
    "render": render_rows,
}


def run_stage(name: str, folder: Path) -> None:
    """Run one stage here and print seconds and bytes."""
    before = psutil.Process().memory_info().rss
    started = time.perf_counter()
    STAGES[name](folder)
    print(json.dumps({"seconds": time.perf_counter() - started, "before_bytes": before, "peak_bytes": peak_bytes()}))


def peak_bytes() -> int:
    """Most resident memory this process ever had, files it maps included."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage:
        run_stage(arguments.stage, arguments.folder)
        return
    with tempfile.TemporaryDirectory() as name:
        make_requests(Path(name), arguments.rows)
        for stage_name in STAGES:
            command = [sys.executable, __file__, "--stage", stage_name, "--folder", name]
            measured = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
            print(
                f"{stage_name:8} {arguments.rows:>9,} rows {measured['seconds']:8.1f} s, "
                f"peak {measured['peak_bytes'] / 2**20:6,.0f} MiB, {measured['before_bytes'] / 2**20:,.0f} MiB before",
                flush=True,
            )


if __name__ == "__main__":
    main()
