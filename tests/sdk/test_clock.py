"""The anchor of streams: measured again after the machine slept, for streams from then on, with their clock's id on the scope."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from opentelemetry.sdk.trace import ReadableSpan

import legato
from legato import _clock

Spans = Callable[[], list[ReadableSpan]]
SLEEP_NS = 8 * 3600 * 1_000_000_000


def scope_clock(span: ReadableSpan) -> str:
    """Return the clock's id on the span's scope."""
    assert span.instrumentation_scope is not None
    return str((span.instrumentation_scope.attributes or {})["legato.stream.clock"])


def test_streams_after_a_sleep_of_the_machine_have_the_right_date(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK_MONOTONIC stands still in a sleep. A stream that runs meanwhile keeps its anchor: its times never jump."""
    monkeypatch.setattr(_clock, "_anchor_ns", _clock._anchor_ns)
    wall_ns = time.time_ns
    running = legato.stream(model="running")
    with monkeypatch.context() as asleep:
        asleep.setattr(time, "time_ns", lambda: wall_ns() + SLEEP_NS)
        before = time.time_ns()
        with legato.stream(model="later") as recorder:
            recorder.record(1)
        after = time.time_ns()
        running.record(1)
        running.end()
        found = {span.name: span for span in spans()}
    later, kept = found["chat later"], found["chat running"]
    assert later.start_time is not None and later.end_time is not None and kept.start_time is not None and kept.end_time is not None
    assert before - 1_000_000 <= later.start_time <= later.end_time <= after + 1_000_000
    assert 0 <= kept.end_time - kept.start_time < SLEEP_NS // 2
    host, _, anchor = scope_clock(later).rpartition(":")
    assert later.end_time == recorder._ends[0].time_ns + int(anchor)
    earlier_host, _, earlier = scope_clock(kept).rpartition(":")
    assert host == earlier_host and abs(int(anchor) - int(earlier) - SLEEP_NS) < 1_000_000_000


def test_a_small_step_of_the_wall_clock_changes_nothing(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NTP makes them: streams of one process keep one clock."""
    wall_ns, anchor = time.time_ns, _clock.anchor_ns()
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + 500_000_000)
    assert _clock.anchor_ns() == anchor
    with legato.stream(model="m"):
        pass
    assert scope_clock(spans()[0]) == _clock.clock_id(anchor)
