"""Ctrl-C ends a command that waits for a server that is gone, after its engines have ended; SIGTERM leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil

from blendserve_core.job.job import Job
from flows.commands.ctrl_c import INTERRUPTED, STOPPED, TERMINATED
from schemas.parameters import JobParameters

# Stands for an engine: it ends when the stop flag is there, as a supervisor would make it.
ENGINE = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.05)
pathlib.Path(sys.argv[3]).touch()
"""

COMMAND = """
import subprocess, sys, time
from pathlib import Path
from blendserve_core.job.job import Job
from flows.commands.ctrl_c import ENGINE_MODULE, ctrl_c_stops
job, flag, done = Job.read(Path(sys.argv[1])), sys.argv[2], sys.argv[3]
with ctrl_c_stops(job):
    subprocess.Popen([sys.executable, "-c", sys.argv[4], ENGINE_MODULE, flag, done])
    print("ready", flush=True)
    time.sleep(600)
"""


def started(tmp_path: Path) -> subprocess.Popen[str]:
    """The command, once its engine runs."""
    parameters = JobParameters(requests="requests.parquet", output=str(tmp_path / "out"))
    job = Job(parameters=parameters, model_folder=tmp_path / "model", fingerprint="0123456789abcdef" * 4, lengths_key="fedcba")
    job.write(job.workspace.root / "job.json")
    arguments = [str(job.workspace.root / "job.json"), str(job.workspace.root / "stop"), str(tmp_path / "done"), ENGINE]
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    assert command.stdout.readline() == "ready\n"
    return command


def test_sigterm_takes_along_what_the_command_started(tmp_path: Path) -> None:
    command = started(tmp_path)
    children = psutil.Process(command.pid).children()
    assert len(children) == 1
    command.terminate()
    _, errors = command.communicate(timeout=60)
    assert (command.returncode, errors.strip()) == (TERMINATED, STOPPED)
    assert psutil.wait_procs(children, timeout=60)[1] == []


def test_ctrl_c_ends_the_engines_and_then_a_command_that_hangs(tmp_path: Path) -> None:
    command = started(tmp_path)
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate(timeout=60)
    assert command.returncode == INTERRUPTED
    assert errors.strip() == STOPPED
    assert (tmp_path / "done").exists()
