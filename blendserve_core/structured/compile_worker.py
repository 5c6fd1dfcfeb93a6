"""The process in which formats are compiled: ``python -m ... MODEL_FOLDER LIMIT_S``, then a JSON line for each.

An answer is ``{}``, or the type and message of the error. A format over the limits ends the process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import psutil

from blendserve_core.line_process import answer, limit_cpu, limit_memory
from blendserve_core.structured.compile import FormatCompiler
from blendserve_core.structured.formats import BadFormat, ResponseFormat, UnsupportedFormat

MEMORY_LIMIT_BYTES = 4 * 2**30


def main(model_folder: str, limit_s: str) -> None:
    # Whatever libraries print goes to the log, not among the answers.
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    compiler = FormatCompiler.load(Path(model_folder), num_threads=1)
    limit_memory(psutil.Process().memory_info().vms + MEMORY_LIMIT_BYTES)
    answer("ready")
    for line in sys.stdin:
        limit_cpu(int(limit_s))
        answer(_compiled(compiler, ResponseFormat(*json.loads(line))))


def _compiled(compiler: FormatCompiler, response_format: ResponseFormat) -> dict[str, str]:
    try:
        compiler.compile(response_format)
    except BadFormat as error:
        return {"type": "invalid_response_format", "message": str(error)}
    except UnsupportedFormat as error:
        return {"type": "unsupported_response_format", "message": str(error)}
    return {}


if __name__ == "__main__":
    main(*sys.argv[1:])
