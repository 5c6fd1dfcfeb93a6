"""The engine's process on the CUDA engine without a device, one group of ranks over gloo for each shard.

In the shard that ``lost_rank.json`` beside the engine's folder names, rank 1 is killed in the middle of a step, once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from flashinfer_stand_in import stand_in_kernels

from blendserve_core.engine.cuda.load import load_cuda_executor
from blendserve_core.shard import worker


def run(spec_path: str, parent_pid: str) -> None:
    order = Path(spec_path).parents[1] / "lost_rank.json"

    def load(folder, requests, dtype, options, rank, *_):
        first_device = rank * options.tensor_parallel
        executor = load_cuda_executor(folder, requests, dtype, options, first_device, stand_in_kernels, is_on_gpu=False)
        launch, num_launched = executor.launch, 0

        def launch_or_lose(step):
            nonlocal num_launched
            num_launched += 1
            if order.exists() and json.loads(order.read_text()) == {"shard": rank, "step": num_launched}:
                order.unlink()
                os.kill(executor._followers.pids[0], signal.SIGKILL)
            return launch(step)

        executor.launch = launch_or_lose
        return executor

    worker.load_executor = load
    worker.main(spec_path, parent_pid)


if __name__ == "__main__":
    run(*sys.argv[1:])
