"""An engine's heartbeat, shown where a Prefect user looks: the run graph and the log."""

from __future__ import annotations

from time import monotonic
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact

from schemas.manifest import Progress

ARTIFACT_INTERVAL_S = 3.0
LOG_INTERVAL_S = 10.0


class EngineProgress:
    """Called with every heartbeat of one engine; passes on as many as a server and a reader like."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger = get_run_logger()
        self._artifact: UUID | None = None
        self._next_artifact_s = 0.0
        self._next_log_s = 0.0

    def __call__(self, progress: Progress) -> None:
        now = monotonic()
        if now >= self._next_artifact_s or progress.num_finished == progress.num_total:
            self._next_artifact_s = now + ARTIFACT_INTERVAL_S
            self._try_to_show(progress)
        if now >= self._next_log_s:
            self._next_log_s = now + LOG_INTERVAL_S
            self._log(progress)

    def _try_to_show(self, progress: Progress) -> None:
        """A server that is away must not end an engine that is well."""
        try:
            self._show(progress)
        except Exception as error:
            self._logger.warning("progress of %s is not shown: %s", self._name, error)

    def _show(self, progress: Progress) -> None:
        percent = 100.0 * progress.num_finished / progress.num_total if progress.num_total else 100.0
        if self._artifact is None:
            artifact = create_progress_artifact(percent, description=f"Requests finished by {self._name}")
            assert isinstance(artifact, UUID)
            self._artifact = artifact
        else:
            update_progress_artifact(self._artifact, percent)

    def _log(self, progress: Progress) -> None:
        self._logger.info(
            "%s: %s, %d of %d requests finished, %d running, %.0f tokens/s",
            self._name,
            progress.phase,
            progress.num_finished,
            progress.num_total,
            progress.num_running,
            progress.num_computed_tokens / max(progress.elapsed_s, 1e-9),
        )
