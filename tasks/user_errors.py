"""A user's mistake ends a run with one line that says what it is; tracebacks are for mistakes of ours."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from blendserve_core.job.job import JobFailed


class JobRefused(ValueError):
    """The job makes no sense as it was asked for, and nothing was generated."""


@contextmanager
def user_errors() -> Iterator[None]:
    """Around what reads a user's files: what they lack is the user's to mend, and no traceback helps with it."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise JobRefused(str(error)) from error


class _OneLine(logging.Filter):
    """Takes the traceback from records of user errors."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, JobRefused | JobFailed):
            record.exc_info = record.exc_text = None
        return True


def log_user_errors_on_one_line() -> None:
    """Have Prefect's loggers of runs leave out the tracebacks of user errors."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if not any(isinstance(known, _OneLine) for known in logger.filters):
            logger.addFilter(_OneLine())
