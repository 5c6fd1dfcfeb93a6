"""Tries formats before any row is generated, in a process of its own: a schema is data, and compiling some takes for ever."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from blendserve_core.data.row_error import RowError
from blendserve_core.line_process import LineProcess
from blendserve_core.structured.formats import ResponseFormat

COMPILE_LIMIT_S = 10


class FormatChecker:
    """Compiles every distinct format once. The process is started for the first one, and again when one has killed it."""

    def __init__(self, model_folder: Path) -> None:
        self._model_folder = model_folder
        self._problems: dict[ResponseFormat, RowError | None] = {}
        self._process: LineProcess | None = None

    def __enter__(self) -> FormatChecker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.end()

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
        if self._process is None:
            arguments = [str(self._model_folder), str(COMPILE_LIMIT_S)]
            self._process = LineProcess("blendserve_core.structured.compile_worker", arguments)
        answer = self._process.ask(response_format)
        if answer is not None:
            return RowError(answer["type"], f"response_format: {answer['message']}") if answer else None
        status, self._process = self._process.end(), None
        why = f"takes more than {COMPILE_LIMIT_S} s" if status == -signal.SIGXCPU else f"ends the compiler (status {status})"
        return RowError("unsupported_response_format", f"response_format: compiling it {why}; make it smaller")
