from __future__ import annotations

import json
from pathlib import Path

import pytest

from blendserve_core.trace import StepTrace, read_split, traced


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def trace(clock: Clock) -> StepTrace:
    return StepTrace(rank=3, clock=clock)


def test_a_span_inside_another_is_counted_once(trace: StepTrace, clock: Clock) -> None:
    with trace.span("sampling"):
        clock.now += 1
        with trace.span("gemm"):
            clock.now += 4
        clock.now += 2
    trace.end_step()
    assert trace.split == {"gemm": 4, "sampling": 3, "rest": 0}


def test_time_outside_of_spans_is_the_rest_and_nothing_is_lost(trace: StepTrace, clock: Clock) -> None:
    for _ in range(2):
        clock.now += 5
        with trace.span("attention"):
            clock.now += 3
        trace.end_step()
    assert trace.split == {"rest": 10, "attention": 6}
    assert sum(trace.split.values()) == clock.now - 100


def test_a_span_ends_with_an_exception(trace: StepTrace, clock: Clock) -> None:
    def fail() -> None:
        clock.now += 1
        raise RuntimeError

    with pytest.raises(RuntimeError):
        traced(fail, trace, "gemm")()
    clock.now += 2
    trace.end_step()
    assert trace.split == {"rest": 2, "gemm": 1}


def test_the_file_draws_a_step_and_its_kinds_in_microseconds(trace: StepTrace, clock: Clock, tmp_path: Path) -> None:
    with trace.span("gemm"):
        clock.now += 0.25
    clock.now += 0.5
    trace.end_step(tokens=7)
    trace.save(tmp_path / "profile.json")
    events = json.loads((tmp_path / "profile.json").read_text())["traceEvents"]
    drawn = {event["name"]: (event["ts"], event["dur"]) for event in events}
    assert drawn == {"step 0": (100e6, 0.75e6), "rest": (100e6, 0.5e6), "gemm": (100.5e6, 0.25e6)}
    assert events[0]["args"] == {"tokens": 7}
    assert {(event["ph"], event["pid"]) for event in events} == {("X", 3)}
    assert read_split(tmp_path / "profile.json") == {"rest": 0.5, "gemm": 0.25}
