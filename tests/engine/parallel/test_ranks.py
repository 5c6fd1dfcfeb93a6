"""What becomes of the first rank's process when another one is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from blendserve_core.engine.parallel.ranks import RankLostError, RankProcesses

STUCK = """
import os, signal, threading
from blendserve_core.engine.parallel import ranks
from test_ranks import take_steps

if __name__ == "__main__":
    ranks.UNNOTICED_S = 0.1
    group = ranks.RankProcesses(2, take_steps, "group 7")
    os.kill(group.pids[0], signal.SIGKILL)
    threading.Event().wait()
"""


def take_steps(rank: int, steps) -> None:
    for _ in steps:
        pass


def test_a_first_rank_that_never_returns_to_notice_is_ended_with_a_message(tmp_path: Path) -> None:
    script = tmp_path / "stuck.py"
    script.write_text(STUCK)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    process = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 1
    assert "rank 1 of group 7 has died (unnoticed), and the group with it" in process.stderr


def test_a_lost_rank_is_told_of_once_it_is_asked_for_and_this_process_lives_on() -> None:
    group = RankProcesses(2, take_steps, "group 7")
    os.kill(group.pids[0], signal.SIGKILL)
    with pytest.raises(RankLostError, match=r"rank 1 of group 7 has died \(killed by SIGKILL\), and the group with it"):
        group.check(wait_s=20.0)
    watchers = [thread for thread in threading.enumerate() if thread.name == "ranks"]
    for watcher in watchers:
        watcher.join(5.0)
    are_content = not any(watcher.is_alive() for watcher in watchers)
    group.close()
    assert are_content


def test_ranks_leave_when_the_group_is_closed() -> None:
    group = RankProcesses(3, take_steps, "group 7")
    group.close()
    assert [process.exitcode for process in group._processes] == [0, 0]
