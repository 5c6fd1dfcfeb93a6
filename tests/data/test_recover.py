"""What a crash leaves in an engine's folder, and what is made of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from blendserve_core.data.generation import Generation
from blendserve_core.data.journal import JOURNAL_FILE
from blendserve_core.data.parts import PartWriter, finished_keys, read_parts
from blendserve_core.data.recover import recover

NEVER = {"max_rows": 1000, "max_delay_s": 1e9}

WRITE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from blendserve_core.data.parts import Generation, PartWriter
parts = PartWriter(Path(sys.argv[1]), max_delay_s=1e9)
for row in range(3):
    parts.append(Generation(row, 0, f"text {row}", [row], "stop", 3, 1, 1))
os.kill(os.getpid(), signal.SIGKILL)
"""


def generation(row: int) -> Generation:
    return Generation(row, 0, f"text {row}", [row], "stop", 3, 1, 1)


def rows(folder: Path) -> list[int]:
    return finished_keys([folder])[0].tolist()


@pytest.fixture
def dead(tmp_path: Path) -> Path:
    """A folder whose writer was killed when rows 0 and 1 were in a part, and rows 2 and 3 were not yet."""
    writer = PartWriter(tmp_path, **NEVER)
    writer.extend([generation(0), generation(1)])
    writer.flush()
    for row in (2, 3):
        writer.append(generation(row))
    return tmp_path


def test_rows_that_were_not_in_a_part_yet_get_one(dead: Path) -> None:
    assert rows(dead) == [0, 1]
    recover(dead)
    assert rows(dead) == [0, 1, 2, 3]
    assert [row["output_text"] for batch in read_parts([dead]) for row in batch.to_pylist()] == [f"text {i}" for i in range(4)]
    recover(dead)
    assert rows(dead) == [0, 1, 2, 3]


def test_a_process_that_is_killed_has_left_every_row_it_finished(tmp_path: Path) -> None:
    died = subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(tmp_path)], check=False)
    assert died.returncode == -signal.SIGKILL
    recover(tmp_path)
    assert rows(tmp_path) == [0, 1, 2]


def test_rows_in_both_a_part_and_the_journal_count_once(dead: Path) -> None:
    journal = (dead / JOURNAL_FILE).read_bytes()
    recover(dead)
    (dead / JOURNAL_FILE).write_bytes(journal)
    recover(dead)
    assert rows(dead) == [0, 1, 2, 3]


@pytest.mark.parametrize("num_lost", [1, 7, 200])
def test_an_entry_that_was_cut_short_is_left_out(dead: Path, num_lost: int) -> None:
    os.truncate(dead / JOURNAL_FILE, (dead / JOURNAL_FILE).stat().st_size - num_lost)
    recover(dead)
    assert rows(dead) == [0, 1, 2]


def test_an_entry_of_zeros_is_no_row(dead: Path) -> None:
    path = dead / JOURNAL_FILE
    path.write_bytes(b"\0" * path.stat().st_size)
    recover(dead)
    assert rows(dead) == [0, 1]


def _cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _change_data(content: bytes) -> bytes:
    """Change the bytes of the first page, far from the footer."""
    return content[:40] + b"\xff\xff" + content[42:]


@pytest.mark.parametrize("damage", [lambda content: b"", _cut, _change_data], ids=["empty", "cut short", "other bytes"])
def test_a_damaged_part_stops_counting_and_the_others_stay(dead: Path, damage, caplog: pytest.LogCaptureFixture) -> None:
    recover(dead)
    first = dead / "part-000000.parquet"
    first.write_bytes(damage(first.read_bytes()))
    recover(dead)
    assert rows(dead) == [2, 3]
    assert "part-000000.parquet is damaged" in caplog.text
    with PartWriter(dead) as writer:
        writer.append(generation(0))
    assert sorted(rows(dead)) == [0, 2, 3]
