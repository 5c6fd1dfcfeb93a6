"""The engine's process as it is, but for some rows that end it in the middle of a step: a stand-in for bugs nobody knows yet.

The rows, and how they kill, are in ``poison.json`` beside the engine's folder.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from blendserve_core.shard import worker


def run(spec_path: str, parent_pid: str) -> None:
    poison = json.loads((Path(spec_path).parents[1] / "poison.json").read_text())
    load = worker.load_executor

    def load_poisoned(*arguments, **options):
        executor = load(*arguments, **options)
        execute = executor.execute

        def execute_or_die(step):
            if set(poison["requests"]) & set(step.seq_ids.tolist()):
                os.kill(os.getpid(), poison["signal"])
            return execute(step)

        executor.execute = execute_or_die
        return executor

    worker.load_executor = load_poisoned
    worker.main(spec_path, parent_pid)


if __name__ == "__main__":
    run(*sys.argv[1:])
