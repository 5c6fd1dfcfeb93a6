"""Which requests an engine computes right now, in a file that outlives it: whichever of them killed it is named there."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blendserve_core.schedule.step import Capacity, Executor, LaunchingExecutor, StepPlan, StepResult

IN_FLIGHT_FILE = "in_flight.bin"


class NotingExecutor:
    """An executor that notes in ``folder`` what each step is about to compute; one small write where that has changed."""

    def __init__(self, executor: Executor, folder: Path) -> None:
        self._executor = executor
        self._descriptor = os.open(folder / IN_FLIGHT_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._noted = np.empty(0, dtype=np.int64)

    @property
    def capacity(self) -> Capacity:
        return self._executor.capacity

    def execute(self, step: StepPlan) -> StepResult:
        self.note(step.seq_ids)
        return self._executor.execute(step)

    def note(self, requests: NDArray[np.int64]) -> None:
        if not np.array_equal(requests, self._noted):
            self._noted = requests.astype(np.int64)
            os.pwrite(self._descriptor, np.append(len(self._noted), self._noted).tobytes(), 0)

    def close(self) -> None:
        """Close the executor. The note stays: an engine that ends as it should has it removed by :func:`forget_in_flight`."""
        self._executor.close()
        os.close(self._descriptor)


class NotingLauncher(NotingExecutor):
    """The same around an executor that launches its steps: noted are the requests of all that are not finished."""

    def __init__(self, executor: LaunchingExecutor, folder: Path) -> None:
        super().__init__(executor, folder)
        self._launching = executor
        self._under_way: deque[NDArray[np.int64]] = deque()

    def launch(self, step: StepPlan) -> Any:
        self._under_way.append(step.seq_ids)
        self.note(np.unique(np.concatenate(self._under_way)))
        return self._launching.launch(step)

    def finish(self, launched: Any) -> StepResult:
        result = self._launching.finish(launched)
        self._under_way.popleft()
        return result

    def may_be_followed(self, step: StepPlan) -> bool:
        return self._launching.may_be_followed(step)


def noting(executor: Executor, folder: Path) -> NotingExecutor:
    """``executor`` with its steps noted in ``folder``."""
    return NotingLauncher(executor, folder) if isinstance(executor, LaunchingExecutor) else NotingExecutor(executor, folder)


def read_in_flight(folder: Path) -> NDArray[np.int64]:
    """Requests that the last engine in this folder was computing when it died; none where it ended as it should."""
    path = folder / IN_FLIGHT_FILE
    content = path.read_bytes() if path.exists() else b""
    numbers = np.frombuffer(content[: len(content) // 8 * 8], dtype=np.int64)
    num_noted = int(numbers[0]) if len(numbers) else 0
    return numbers[1 : 1 + num_noted] if 0 < num_noted < len(numbers) else numbers[:0]


def forget_in_flight(folder: Path) -> None:
    (folder / IN_FLIGHT_FILE).unlink(missing_ok=True)
