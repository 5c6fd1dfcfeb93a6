"""Why a job starts from nothing although its output folder holds work: which part of the fingerprint is another one."""

from __future__ import annotations

from datetime import UTC, datetime

from blendserve_core.data.staged_files import MANIFEST_FILE
from blendserve_core.job.job import Job

LONGEST_SHOWN = 60


def changes_since_earlier(job: Job) -> str:
    """One line on what differs from the job that ran last in this output folder; empty where this one has run before."""
    if _has_run(job):
        return ""
    earlier = _latest_other(job)
    if earlier is None:
        return ""
    when = datetime.fromtimestamp(earlier.workspace.record.stat().st_mtime, UTC).isoformat(" ", "minutes")
    differences = "; ".join(part_differences(earlier.parts, job.parts)) or "the version of BlendServe that recorded it"
    is_model_the_same = earlier.reuse_key == job.reuse_key
    kept = "Published rows that ask for the same are kept" if is_model_the_same else "Nothing of that run is used"
    return (
        f"A new job, in {job.workspace.root}: since the run of {when[:16]} UTC in {earlier.workspace.root.name} there changed "
        f"{differences}. {kept}."
    )


def part_differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The parts of two fingerprints that differ, with their values where a person can read them."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return [_difference(name, before.get(name, ""), after.get(name, "")) for name in names]


def _difference(name: str, before: str, after: str) -> str:
    is_digest = len(before) == len(after) == 32 and not {*before, *after} - set("0123456789abcdef")
    if is_digest or max(len(before), len(after)) > LONGEST_SHOWN:
        return name
    return f"{name} ({before or 'none'} before, now {after or 'none'})"


def _latest_other(job: Job) -> Job | None:
    records = [Job.read_if_whole(path) for path in job.workspace.root.parent.glob("*/job.json")]
    others = [other for other in records if other is not None and other.fingerprint != job.fingerprint and _has_run(other)]
    return max(others, key=lambda other: other.workspace.record.stat().st_mtime, default=None)


def _has_run(job: Job) -> bool:
    """A job counts once its requests are staged: before that there is nothing that could be used."""
    return (job.workspace.staged / MANIFEST_FILE).exists()
