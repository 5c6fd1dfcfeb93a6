"""Ctrl-C and SIGTERM end a command that waits for a server that is gone, after its engines; nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from blendserve_core.job.job import Job
from flows.commands.ctrl_c import INTERRUPTED, STOPPED, TERMINATED, until_ctrl_c
from schemas.parameters import JobParameters

SIGNALS = [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)]

# Stands for an engine: told to stop, it writes what is finished.
ENGINE = """
import pathlib, signal, sys, time
def stop(*_):
    pathlib.Path(sys.argv[2]).touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(600)
"""

# Stands for a flow whose server is gone: while it waits it heeds nobody, and Prefect's own handler of SIGTERM is in its way.
COMMAND = """
import subprocess, sys, time
from pathlib import Path
from prefect.utilities.engine import capture_sigterm
from blendserve_core.job.job import Job
from flows.commands.ctrl_c import ENGINE_MODULE, until_ctrl_c

def wait_for_the_server():
    with capture_sigterm():
        subprocess.Popen([sys.executable, "-c", sys.argv[2], ENGINE_MODULE, sys.argv[3]], start_new_session=True)
        try:
            time.sleep(600)
        finally:
            time.sleep(600)

until_ctrl_c(Job.read(Path(sys.argv[1])), wait_for_the_server)
"""


@pytest.fixture
def command(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Runs, with its engine, in a session of its own."""
    parameters = JobParameters(requests="requests.parquet", output=str(tmp_path / "out"))
    job = Job(parameters=parameters, model_folder=tmp_path / "model", fingerprint="0123456789abcdef" * 4, lengths_key="fedcba")
    path = job.workspace.root / "job.json"
    job.write(path)
    arguments = [sys.executable, "-c", COMMAND, str(path), ENGINE, str(tmp_path / "written")]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "ready\n"
        yield command
        command.kill()


@pytest.mark.parametrize(("which", "status"), SIGNALS)
@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_a_command_that_is_told_to_stop_ends_its_engines_and_then_itself(
    which: signal.Signals, status: int, send: Callable[[int, int], None], command: subprocess.Popen[str], tmp_path: Path
) -> None:
    engines = psutil.Process(command.pid).children()
    assert len(engines) == 1
    send(command.pid, which)
    _, errors = command.communicate(timeout=60)
    assert command.returncode == status
    assert errors.splitlines()[-1] == STOPPED
    assert "Traceback" not in errors
    assert (tmp_path / "written").exists()
    assert psutil.wait_procs(engines, timeout=60)[1] == []


def test_told_twice_a_command_does_not_wait(command: subprocess.Popen[str]) -> None:
    command.send_signal(signal.SIGINT)
    command.send_signal(signal.SIGTERM)
    assert command.wait(timeout=60) in (INTERRUPTED, TERMINATED)


def test_what_runs_meanwhile_returns_and_raises_as_ever(tmp_path: Path) -> None:
    parameters = JobParameters(requests="requests.parquet", output=str(tmp_path / "out"))
    job = Job(parameters=parameters, model_folder=tmp_path, fingerprint="f" * 64, lengths_key="")
    before = [signal.getsignal(which) for which, _ in SIGNALS]
    assert until_ctrl_c(job, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        until_ctrl_c(job, lambda: 1 // 0)
    assert [signal.getsignal(which) for which, _ in SIGNALS] == before
