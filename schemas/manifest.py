"""Manifests: the small JSON files that say what a stage, a shard or a job did. Tasks exchange these, never rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator

from schemas.manifest_versions import MANIFEST_VERSION, upgraded


class JsonFile(BaseModel):
    """A frozen model that is written whole or not at all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def write(self, path: Path, *, lasting: bool = True) -> None:
        """Write to a temporary name, then rename: a reader never sees half a manifest, after a power cut neither.

        What is rewritten all the time need not be ``lasting``: it then survives its writer's death, but not the machine's.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(self.model_dump_json(indent=2))
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        temporary.replace(path)

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls.model_validate_json(path.read_text(encoding="utf-8"))

    @classmethod
    def read_if_whole(cls, path: Path) -> Self | None:
        """None where there is no such file, or not all of it: a crashed machine may leave a file empty or cut short."""
        try:
            return cls.read(path)
        except (FileNotFoundError, ValueError):
            return None


class LockHolder(JsonFile):
    """Who works in a locked folder. ``since`` is a time in ISO 8601, UTC."""

    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


class StageManifest(JsonFile):
    """What staging found. ``num_requests`` counts input rows, ``num_errors`` those that cannot be served.

    Of the samples of the others ``num_sequences`` are to be generated; ``num_duplicates`` share the outcome of another that
    asks for the same, and ``num_reused`` take over one of an earlier run.
    """

    num_requests: int
    num_sequences: int
    num_duplicates: int = 0
    num_reused: int = 0
    num_errors: int
    num_prompt_tokens: int
    has_request_id: bool
    wants_logprobs: bool
    stage_s: float


class EngineManifest(JsonFile):
    """What one engine process did, for a shard or for the warm-up. Times in seconds; ``generate_s`` is the step loop alone, and
    ``generate_cpu_s`` its processor time on all threads.

    ``kv_cache_tokens`` is the size of its KV pool, ``peak_memory_bytes`` the most memory it held, mapped files included. A step
    had at most ``max_step_tokens`` tokens of ``max_sequences`` sequences.
    """

    rank: int
    num_sequences: int
    num_errors: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_steps: int
    num_retractions: int
    num_recomputed_tokens: int
    engine_start_s: float
    generate_s: float
    schedule_s: float
    generate_cpu_s: float = 0.0
    kv_cache_tokens: int = 0
    max_step_tokens: int = 0
    max_sequences: int = 0
    peak_memory_bytes: int = 0
    interrupted: bool = False


class PublishCounts(JsonFile):
    """What publishing wrote: rows by finish reason (``outcomes``), errors by type, and tokens, prompts once per sample.

    ``num_duplicate_rows`` have a copy of another row's outcome and ``num_reused_rows`` that of an earlier run; what engines
    served for this output is counted again on its own. ``num_surplus`` outcomes were on disk a second time and left out.
    """

    num_rows: int
    outcomes: dict[str, int]
    errors: dict[str, int]
    num_errors: int
    num_duplicate_rows: int
    num_reused_rows: int
    num_surplus: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_served_prompt_tokens: int
    num_served_cached_tokens: int
    num_served_output_tokens: int


class PublishManifest(PublishCounts):
    """The same, and how long it took."""

    publish_s: float


class LengthSources(JsonFile):
    """What a plan knew of output lengths, in requests.

    ``num_stated`` rows give their length (``expected_output_tokens``, ``ignore_eos``). ``num_seen`` outputs the job itself had
    when it planned, most of them the warm-up's, and ``num_remembered`` an earlier job over the same rows and model.
    """

    num_stated: int
    num_seen: int
    num_remembered: int


class Manifest(JsonFile):
    """The job's own manifest, written last, beside the generations of the same ``run``. Reads older versions as well.

    ``num_requests`` input rows gave ``num_rows`` output rows (one per sample): ``outcomes`` counts them by finish reason and
    ``errors`` by type. ``num_duplicate_rows`` have a copy of another row's outcome, ``num_reused_rows`` that of an earlier run.
    Prompt, cached and output tokens are those of all rows. Engines served ``num_served_tokens`` of them, prompt and output, and
    computed what was not cached. ``optimum_share`` and ``reachable_share`` are what ``generate_s`` reached of the practical
    optimum and of the reachable time, a lower bound, on ``hardware`` with the true lengths.
    ``generate_s`` covers all engine work on requests, warm-up included, without process and model start-up
    (``engine_start_s``); engines that ran side by side count once, by the slowest. Their steps had at most ``max_step_tokens``
    tokens of ``max_sequences`` sequences, which were chosen for the machine or asked for. ``est_bias`` is estimated over actual
    output tokens in all, less 1, and ``est_mape`` the mean absolute error of a row's estimate as a share of its actual tokens;
    None where no output is known.
    """

    version: int = MANIFEST_VERSION
    run: str
    fingerprint: str
    fingerprint_parts: dict[str, str]
    reuse_key: str
    num_retries: int
    plan_digest: str
    model: str
    model_revision: str | None = None
    policy: str
    dtype: str
    num_shards: int
    num_requests: int
    num_rows: int
    outcomes: dict[str, int]
    errors: dict[str, int]
    num_errors: int
    num_duplicate_rows: int
    num_reused_rows: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_served_tokens: int
    num_computed_prompt_tokens: int
    num_computed_output_tokens: int
    num_recomputed_tokens: int
    num_retractions: int
    sharing_ratio: float
    stage_s: float
    warm_up_s: float
    plan_s: float
    engine_start_s: float
    generate_s: float
    publish_s: float
    tokens_per_s: float
    hardware: str
    optimum_s: float
    reachable_s: float
    optimum_share: float | None
    reachable_share: float | None
    max_step_tokens: int = 0
    max_sequences: int = 0
    length_sources: LengthSources | None = None
    est_bias: float | None = None
    est_mape: float | None = None
    generations: str
    row_digests: str
    report: str
    versions: dict[str, str]

    @model_validator(mode="before")
    @classmethod
    def _of_any_version(cls, content: Any) -> Any:
        return upgraded(content) if isinstance(content, dict) else content

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        """Raises ValueError where rows were lost or counted twice."""
        num_by_outcome, num_by_type = sum(self.outcomes.values()), sum(self.errors.values())
        if num_by_outcome != self.num_rows or self.num_rows < self.num_requests:
            raise ValueError(
                f"the outcomes do not add up: {self.num_requests} input rows, {self.num_rows} output rows, "
                f"{num_by_outcome} by finish reason ({self.outcomes})"
            )
        if num_by_type != self.num_errors:
            raise ValueError(f"the errors do not add up: {self.num_errors} rows, {num_by_type} by type ({self.errors})")
        return self


class Progress(JsonFile):
    """An engine's heartbeat, rewritten about once a second; the shard task that supervises it reads it."""

    phase: str
    num_finished: int
    num_total: int
    num_running: int
    num_output_tokens: int
    num_computed_tokens: int
    elapsed_s: float
    updated_at: float
