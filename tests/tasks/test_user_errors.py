import logging

import pytest

from blendserve_core.job.job import JobFailed
from tasks.user_errors import JobRefused, log_user_errors_on_one_line, user_errors


def test_what_a_users_file_lacks_is_the_jobs_refusal():
    with pytest.raises(JobRefused, match="no prompt column"), user_errors():
        raise ValueError("no prompt column")
    with pytest.raises(JobRefused, match=r"x\.parquet"), user_errors():
        raise FileNotFoundError("x.parquet")
    with pytest.raises(AssertionError), user_errors():
        raise AssertionError


@pytest.mark.parametrize(("error", "has_traceback"), [(JobRefused("a"), False), (JobFailed("b"), False), (KeyError("c"), True)])
def test_only_our_own_mistakes_are_logged_with_a_traceback(error, has_traceback, monkeypatch):
    log_user_errors_on_one_line()
    records = []
    logger = logging.getLogger("prefect.task_runs")
    monkeypatch.setattr(logger, "handle", lambda record: logger.filter(record) and records.append(record))
    try:
        raise error
    except Exception:
        logger.exception("Encountered exception during execution: %r", error)
    assert bool(records[0].exc_info) == has_traceback
