"""Prefect as a user runs it: a server started by hand, and the command line as a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import ended_with_its_children, wait_until

BIN = Path(sys.executable).parent
Environment = dict[str, str]


@pytest.fixture(scope="session")
def prefect_environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A Prefect home of the tests' own, so that no profile or database of the user is touched."""
    return os.environ | {
        "PREFECT_HOME": str(tmp_path_factory.mktemp("prefect-home")),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="session")
def server_by_hand(prefect_environment: Environment) -> Iterator[Environment]:
    """``prefect server start``; yields the environment in which PREFECT_API_URL names it."""
    port = _free_port()
    command = [str(BIN / "prefect"), "server", "start", "--port", str(port), "--no-ui"]
    with ended_with_its_children(subprocess.Popen(command, env=prefect_environment, start_new_session=True)):
        url = f"http://127.0.0.1:{port}/api"
        wait_until(lambda: _answers(f"{url}/health"), "the server answers")
        yield prefect_environment | {"PREFECT_API_URL": url}


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
