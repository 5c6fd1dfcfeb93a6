"""The ``blendserve`` command line. Each command is a function of its own file under ``commands/``."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version

from cyclopts import App, CycloptsError, Parameter
from pydantic import ValidationError

from blendserve_core.job.interrupt import Interrupted
from blendserve_core.job.job import JobFailed
from blendserve_core.job.only_run import OutputBusy
from blendserve_core.shard.supervise import EngineError
from blendserve_core.text.printable import printable

FAILED, USER_ERROR, INTERRUPTED = 1, 2, 130

# The embedded server needs longer than its default 20 s on a busy machine, and tries to call home when it is up.
PREFECT_DEFAULTS = {
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
}

# Loaded when called: asking for help should not wait for numba and pyarrow.
COMMANDS = {
    "run": "Generate a text for every row of a dataset. The same command goes on where a stopped run ended.",
    "run-batch": "Serve a file of requests in the format of OpenAI's batch API, and answer in that format.",
    "plan": "Plan a job and print the plan; nothing is generated.",
    "calibrate": "Measure how fast this machine runs a model, for planners and engines.",
    "simulate": "Plan and run a workload on a cost model's clock, without an engine.",
    "demo": "Run a job on demo requests: classify, answer and write about passages of Python's documentation.",
}

app = App(
    name="blendserve",
    help="Offline batch inference for large language models.",
    version=lambda: version("blendserve"),
    default_parameter=Parameter(negative_iterable=()),
)
for name, help_text in COMMANDS.items():
    function = name.replace("-", "_")
    app.command(f"flows.commands.{function}:{function}", name=name, help=help_text)


def main() -> None:
    for name, value in PREFECT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    sys.exit(call(sys.argv[1:]))


def call(arguments: list[str]) -> int:
    """Run one command and return its exit status, 0 only if the job did what was asked. A user's mistake is one line."""
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except (JobFailed, EngineError) as error:
        return _complain(str(error), FAILED)
    except (CycloptsError, OutputBusy, ValueError, OSError) as error:
        return _complain(_one_line(error), USER_ERROR)
    except (KeyboardInterrupt, Interrupted):
        return _complain("stopped; the same command goes on from here", INTERRUPTED)
    return 0


def _complain(message: str, status: int) -> int:
    shown = "\n".join(printable(line) for line in message.splitlines())
    print(f"blendserve: {shown}", file=sys.stderr)
    return status


def _one_line(error: BaseException) -> str:
    cause = error.__cause__
    if isinstance(cause, ValidationError):
        error = cause
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}, not {e['input']!r}" for e in error.errors())
    return " ".join(str(error).split())
