"""Compiles formats, one a line on standard input: ``python -m ... MODEL_FOLDER LIMIT_S LIMIT_BYTES``. Only answers matter.

An answer is ``{}``, or the type and message of the error. A format over a limit ends the process.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

import psutil

from blendserve_core.structured.compile import FormatCompiler
from blendserve_core.structured.formats import BadFormat, ResponseFormat, UnsupportedFormat


def main(model_folder: str, limit_s: str, limit_bytes: str) -> None:
    # Whatever libraries print goes to the log, not among the answers.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        compiler = FormatCompiler.load(Path(model_folder), num_threads=1)
        used_bytes = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (used_bytes + int(limit_bytes), resource.RLIM_INFINITY))
        print("{}", file=answers, flush=True)
        for line in sys.stdin:
            _limit_cpu(int(limit_s))
            print(json.dumps(_answer(compiler, ResponseFormat(*json.loads(line)))), file=answers, flush=True)


def _limit_cpu(limit_s: int) -> None:
    """Have the kernel end this process after so many more seconds of its own work, however busy the machine is."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used_s = int(usage.ru_utime + usage.ru_stime) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used_s + limit_s, resource.RLIM_INFINITY))


def _answer(compiler: FormatCompiler, response_format: ResponseFormat) -> dict[str, str]:
    try:
        compiler.compile(response_format)
    except BadFormat as error:
        return {"type": "invalid_response_format", "message": str(error)}
    except UnsupportedFormat as error:
        return {"type": "unsupported_response_format", "message": str(error)}
    return {}


if __name__ == "__main__":
    main(*sys.argv[1:])
