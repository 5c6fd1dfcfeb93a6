"""What an engine process is told: a small JSON file of paths and options, no rows."""

from __future__ import annotations

from schemas.manifest import JsonFile
from schemas.parameters import DtypeName, EngineOptions, PolicyName


class EngineSpec(JsonFile):
    """The work of one engine process. Paths are absolute.

    It serves the requests of shard ``rank`` of the plan in ``plan_folder`` that are not already in a part file under any of
    ``done_folders``, going on from outputs that an engine there left unfinished, and writes part files, ``progress.json`` and
    ``manifest.json`` into ``output_folder``. It ends early once ``stop_at_finished`` of its requests have ended: a warm-up
    does not wait for its stragglers. ``num_engines`` run on this machine at once, itself included, and share cores and memory.
    A Chrome trace of its steps goes to the file ``profile``.
    With ``suspects`` it serves those requests and no others: one of them may have killed an engine before.
    """

    rank: int
    staged_folder: str
    plan_folder: str
    output_folder: str
    done_folders: list[str]
    model_folder: str
    policy: PolicyName
    dtype: DtypeName
    seed: int
    engine: EngineOptions
    stop_at_finished: int | None = None
    num_engines: int = 1
    profile: str | None = None
    suspects: list[int] | None = None
