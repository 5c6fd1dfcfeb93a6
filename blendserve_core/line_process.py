"""A Python module run as a process that answers JSON lines: code that works on hostile data may die or hang there alone."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any


class LineProcess:
    """Runs ``python -m module arguments``, which says it is ready by a first line, then answers each line with one."""

    def __init__(self, module: str, arguments: Sequence[str] = ()) -> None:
        with tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
            if self._read() is None:
                self.end()
                log.seek(0)
                raise RuntimeError(f"{module} cannot be started:\n{log.read().decode('utf-8', 'replace')}")

    def ask(self, question: Any) -> Any | None:
        """Its answer, or None when it died before it gave one. ``question`` is written as JSON, what is none by its type."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question, default=_type_name) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        return self._read()

    def end(self) -> int:
        """Kill it if it still runs; returns its exit status, the negative number of the signal that ended it."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()
        return self._process.wait()

    def _read(self) -> Any | None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else None


def answer(value: Any) -> None:
    """Write one line, in the process."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def limit_memory(num_bytes: int) -> None:
    """Bound the address space of this process: what asks for more gets a MemoryError."""
    resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))


def limit_cpu(seconds: int) -> None:
    """Have this process killed by SIGXCPU once it has computed for ``seconds`` more."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime) + 1 + seconds, hard))


def _type_name(value: Any) -> str:
    return f"<{type(value).__name__}>"
