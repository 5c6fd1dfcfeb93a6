"""Tries formats before any row is generated, in a process of its own: a schema is data, and compiling some takes for ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from blendserve_core.data.row_error import RowError
from blendserve_core.structured.formats import ResponseFormat

COMPILE_LIMIT_S = 10
MEMORY_LIMIT_BYTES = 4 * 2**30


class FormatChecker:
    """Compiles every distinct format once. The process is started for the first one, and again when one has killed it."""

    def __init__(self, model_folder: Path) -> None:
        self._model_folder = model_folder
        self._problems: dict[ResponseFormat, RowError | None] = {}
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> FormatChecker:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def check(self, formats: Sequence[ResponseFormat | None], errors: dict[int, RowError]) -> None:
        """Add what is wrong with the formats of a batch to the errors of its rows."""
        for row, response_format in enumerate(formats):
            if response_format is not None and (problem := self.problem(response_format)) is not None:
                errors.setdefault(row, problem)

    def problem(self, response_format: ResponseFormat) -> RowError | None:
        """Why texts of this format cannot be generated, or None."""
        if response_format not in self._problems:
            self._problems[response_format] = self._compile(response_format)
        return self._problems[response_format]

    def _compile(self, response_format: ResponseFormat) -> RowError | None:
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps(response_format) + "\n")
        process.stdin.flush()
        answer = self._read(process)
        if answer is None:
            return RowError("unsupported_response_format", f"response_format: {self._describe_death(process)}")
        return RowError(answer["type"], f"response_format: {answer['message']}") if answer else None

    def _start(self) -> subprocess.Popen[str]:
        limits = [str(COMPILE_LIMIT_S), str(MEMORY_LIMIT_BYTES)]
        with tempfile.TemporaryFile() as log:
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", "blendserve_core.structured.compile_worker", str(self._model_folder), *limits],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            if self._read(process) is None:
                self._end()
                log.seek(0)
                why = log.read().decode("utf-8", "replace")
                raise RuntimeError(f"formats cannot be compiled for the model in {self._model_folder}:\n{why}")
        return process

    def _read(self, process: subprocess.Popen[str]) -> dict[str, str] | None:
        """The next answer, None when the process died before it gave one."""
        assert process.stdout is not None
        line = process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else None

    def _describe_death(self, process: subprocess.Popen[str]) -> str:
        code = process.wait()
        self._end()
        if code == -signal.SIGXCPU:
            return f"compiling it takes more than {COMPILE_LIMIT_S} s; make it smaller"
        return f"the compiler does not survive it (status {code}); make it smaller"

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
