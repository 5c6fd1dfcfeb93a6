"""Where things lie in a job's output folder."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

RETRY = "-retry-"


def is_remote(output: str) -> bool:
    """Whether the user wants the output under a URL, not in a folder of this machine."""
    return "://" in output and not output.startswith("file://")


def output_folder(output: str) -> Path:
    """The local folder of a job's files. For a URL that is ``$XDG_STATE_HOME/blendserve/outputs/...``, one for each URL."""
    if not is_remote(output):
        return Path(output.removeprefix("file://")).expanduser().absolute()
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    digest = hashlib.blake2b(output.rstrip("/").encode(), digest_size=8).hexdigest()
    return (state / "blendserve" / "outputs" / digest).absolute()


@dataclass(frozen=True, slots=True)
class Workspace:
    """Paths of one job. ``output`` is what the user named; everything on the way there is under ``work/<run>``.

    ``num_retries`` counts the runs before this one whose errors were retried; each has a folder of its own.
    """

    output: Path
    fingerprint: str
    num_retries: int = 0

    @property
    def run(self) -> str:
        """Names the run among those that share the output."""
        return self.fingerprint[:16] + (f"{RETRY}{self.num_retries}" if self.num_retries else "")

    @property
    def root(self) -> Path:
        return self.output / "work" / self.run

    @property
    def all_runs(self) -> list[Workspace]:
        """Of this job: the first run, and each that retried the errors of the one before."""
        return [replace(self, num_retries=number) for number in range(self.num_retries + 1)]

    @property
    def record(self) -> Path:
        """The job itself, as it was prepared last."""
        return self.root / "job.json"

    @property
    def staged(self) -> Path:
        """Request table, input rows (``input-*.parquet``), bad rows (``errors.parquet``) and ``manifest.json``."""
        return self.root / "staged"

    @property
    def warm_up(self) -> Path:
        """Engine folder of the warm-up sample; its rows are results like any other."""
        return self.root / "warm_up"

    @property
    def warm_up_plan(self) -> Path:
        return self.root / "warm_up_plan"

    @property
    def plan(self) -> Path:
        return self.root / "plan"

    def shard(self, rank: int) -> Path:
        """Engine folder of one shard: ``spec.json``, part files, ``progress.json``, ``engine.log``, ``manifest.json``."""
        return self.root / f"shard-{rank:05d}"

    def profile(self, rank: int) -> Path:
        """Chrome trace of a shard's steps, where one was asked for."""
        return self.output / f"profile-shard-{rank:05d}.json"

    @property
    def engine_folders(self) -> list[Path]:
        """Every folder that may hold finished rows, whatever number of shards wrote them."""
        return [self.warm_up, *sorted(self.root.glob("shard-*"))]

    @property
    def generations(self) -> Path:
        return self.output / "generations.parquet"

    @property
    def manifest(self) -> Path:
        return self.output / "manifest.json"

    @property
    def report(self) -> Path:
        return self.output / "report.md"
