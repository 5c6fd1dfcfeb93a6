"""A job in a process of its own, killed at random moments and started again until it is done."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from blendserve_core.data.journal import read_journal
from blendserve_core.data.parts import finished_keys
from blendserve_core.shard.supervise import WORKER_MODULE
from schemas.parameters import JobParameters

RUN = "import sys; from blendserve_core.job.run import run_job; from schemas.parameters import JobParameters; " \
    "run_job(JobParameters.model_validate_json(open(sys.argv[1]).read()))"  # fmt: skip
POLL_S = 0.01
ROUND_TAKES_AT_MOST_S = 600.0


class KilledJob:
    """Counts its ``kills`` by what was killed, and checks after each that no finished row was lost or is there twice."""

    def __init__(self, parameters: JobParameters, seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self._output = Path(parameters.output)
        self._parameters = self._output.parent / f"{self._output.name}.json"
        self._parameters.write_text(parameters.model_dump_json())
        self._rng = random.Random(seed)
        self._finished: set[tuple[int, int]] = set()

    def run(self, num_kills: int) -> None:
        """Run to the end, through so many kills at most."""
        while self._is_killed_once(num_kills):
            self._check_rows()
        self._check_rows()

    def _is_killed_once(self, num_kills: int) -> bool:
        """Start the job and see to its end; False if that was its own."""
        with self._log.open("ab") as log:
            flow = subprocess.Popen([sys.executable, "-c", RUN, str(self._parameters)], stdout=log, stderr=log)
        while self.kills.total() < num_kills and self._wait_for_a_moment(flow):
            if self._kill(flow):
                return True
        assert flow.wait(timeout=ROUND_TAKES_AT_MOST_S) == 0, self._log.read_text()[-4000:]
        return False

    @property
    def _log(self) -> Path:
        return self._output.parent / f"{self._output.name}.log"

    def _wait_for_a_moment(self, flow: subprocess.Popen[bytes]) -> bool:
        """Let some time pass, since now or since something happened. False when the job ended first."""
        rows_finish, shard_ends = (self._changes(pattern) for pattern in ("journal.bin", "manifest.json"))
        happened = self._rng.choice([lambda: True, *[rows_finish] * 4, shard_ends])
        deadline = time.monotonic() + ROUND_TAKES_AT_MOST_S
        while not happened():
            if flow.poll() is not None:
                return False
            assert time.monotonic() < deadline, self._log.read_text()[-4000:]
            time.sleep(POLL_S)
        with suppress(subprocess.TimeoutExpired):
            flow.wait(timeout=self._rng.expovariate(2.0))
        return flow.poll() is None

    def _changes(self, name: str) -> Callable[[], bool]:
        """Whether a file of this name has come or grown in an engine's folder since now."""

        def sizes() -> set[tuple[Path, int]]:
            found = set()
            for path in self._output.glob(f"work/*/shard-*/{name}"):
                with suppress(FileNotFoundError):
                    found.add((path, path.stat().st_size))
            return found

        before = sizes()
        return lambda: bool(sizes() - before)

    def _kill(self, flow: subprocess.Popen[bytes]) -> bool:
        """Kill engine, flow or both; whether the flow is gone."""
        engines = list(_engines_of(flow))
        what = self._rng.choice(["engine", "flow", "both"] if engines else ["flow"])
        self.kills[what] += 1
        if what == "engine":
            _kill_each(self._rng.sample(engines, 1))
            return False
        flow.kill()
        if what == "both":
            _kill_each(engines)
        flow.wait()
        return True

    def _rows_on_disk(self) -> list[tuple[int, int]]:
        folders = sorted(self._output.glob("work/*/*/"))
        rows, samples = finished_keys(folders)
        in_parts = list(zip(rows.tolist(), samples.tolist(), strict=True))
        in_journals = [(row["row"], row["sample_index"]) for folder in folders for row in read_journal(folder).to_pylist()]
        assert len(set(in_parts)) == len(in_parts), "a row is finished twice"
        return [*in_parts, *in_journals]

    def _check_rows(self) -> None:
        finished = set(self._rows_on_disk())
        assert finished >= self._finished, "rows that were finished are lost"
        self._finished = finished


def _engines_of(flow: subprocess.Popen[bytes]) -> Iterator[psutil.Process]:
    with suppress(psutil.Error):
        for child in psutil.Process(flow.pid).children():
            with suppress(psutil.Error):
                if WORKER_MODULE in child.cmdline():
                    yield child


def _kill_each(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
