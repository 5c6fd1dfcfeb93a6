from __future__ import annotations

import logging
from uuid import UUID, uuid4

import pytest

from schemas.manifest import Progress
from tasks import progress as module
from tasks.progress import EngineProgress


class Prefect:
    """Stands in for the server: remembers the percentages it was shown, and tells the time."""

    def __init__(self) -> None:
        self.shown: list[float] = []
        self.now_s = 100.0

    def create(self, percent: float, description: str) -> UUID:
        self.shown.append(percent)
        return uuid4()

    def update(self, artifact: UUID, percent: float) -> None:
        self.shown.append(percent)


@pytest.fixture
def prefect(monkeypatch: pytest.MonkeyPatch) -> Prefect:
    stand_in = Prefect()
    monkeypatch.setattr(module, "create_progress_artifact", stand_in.create)
    monkeypatch.setattr(module, "update_progress_artifact", stand_in.update)
    monkeypatch.setattr(module, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(module, "monotonic", lambda: stand_in.now_s)
    return stand_in


def heartbeat(num_finished: int, num_total: int = 50) -> Progress:
    return Progress(
        phase="generating",
        num_finished=num_finished,
        num_total=num_total,
        num_running=4,
        num_output_tokens=10 * num_finished,
        num_computed_tokens=30 * num_finished,
        elapsed_s=1.0,
        updated_at=0.0,
    )


def test_heartbeats_update_one_artifact_at_most_every_few_seconds(prefect: Prefect) -> None:
    show = EngineProgress("shard 0")
    for num_finished in range(1, 10):
        prefect.now_s += 1.0
        show(heartbeat(num_finished))
    assert prefect.shown == [2.0, 8.0, 14.0]


def test_the_last_heartbeat_is_always_shown(prefect: Prefect) -> None:
    show = EngineProgress("shard 0")
    show(heartbeat(49))
    show(heartbeat(50))
    assert prefect.shown == [98.0, 100.0]


def test_a_shard_without_requests_is_done(prefect: Prefect) -> None:
    EngineProgress("shard 0")(heartbeat(0, num_total=0))
    assert prefect.shown == [100.0]


def test_the_log_tells_of_an_engine_every_ten_seconds(prefect: Prefect, caplog: pytest.LogCaptureFixture) -> None:
    show = EngineProgress("shard 3")
    with caplog.at_level(logging.INFO, logger="test"):
        for num_finished in range(1, 13):
            show(heartbeat(num_finished))
            prefect.now_s += 1.0
    assert [record.getMessage() for record in caplog.records] == [
        "shard 3: generating, 1 of 50 requests finished, 4 running, 30 tokens/s",
        "shard 3: generating, 11 of 50 requests finished, 4 running, 330 tokens/s",
    ]
