"""What is on disk is whole, and a full disk is called by its name."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from blendserve_core.data.durable import DiskFull, written_whole
from schemas.manifest import LengthSources

SOURCES = LengthSources(num_stated=1, num_seen=2, num_remembered=3)


def fail_to_write(path: Path, error: OSError) -> None:
    with written_whole(path) as temporary:
        temporary.write_text("half")
        raise error


def test_a_full_disk_is_named_with_the_way_out_and_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("earlier")
    with pytest.raises(DiskFull, match=r"no space left on the disk of .*rows.*same command"):
        fail_to_write(tmp_path / "rows", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows"]
    assert (tmp_path / "rows").read_text() == "earlier"


def test_other_errors_pass_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(PermissionError):
        fail_to_write(tmp_path / "rows", PermissionError(errno.EACCES, "no"))


def test_a_manifest_that_a_crash_cut_short_is_taken_for_none(tmp_path: Path) -> None:
    path = tmp_path / "sources.json"
    SOURCES.write(path)
    whole = path.read_bytes()
    assert LengthSources.read_if_whole(path) == SOURCES
    for torn in (b"", whole[:20], b"\0" * len(whole), b"\xff\xfe"):
        path.write_bytes(torn)
        assert LengthSources.read_if_whole(path) is None
    assert LengthSources.read_if_whole(tmp_path / "absent.json") is None
