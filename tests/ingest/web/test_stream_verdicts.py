"""Tests of the engine and the parts of a verdict on a stream's page."""

from __future__ import annotations

from legato_ingest.web.stream_verdicts import engine_of, parts_us


def test_parts_add_up_in_microseconds() -> None:
    """Negative parts are left out; rounding loses no microsecond."""
    parts = {"base": 20_000_700, "host": 600_000_700, "front_end": 1_600, "connection": -5_000_000}
    assert parts_us(parts) == {"base": 20_000, "host": 600_001, "front_end": 2}
    assert sum(parts_us(parts).values()) == (20_000_700 + 600_000_700 + 1_600) // 1_000
    assert parts_us({}) == {} and parts_us({"host": "1500"}) == {"host": 1}


def test_the_engine_is_that_of_most_stalls() -> None:
    """Without a verdict that names one, the first vantage with an engine counts."""
    rows = [{"engine_id": ""}, {"engine_id": "server"}]
    assert engine_of([{"engine_id": "rank/1"}, {"engine_id": "rank/0"}, {"engine_id": "rank/1"}], rows) == "rank/1"
    assert engine_of([{"engine_id": ""}], rows) == "server" and engine_of([], rows[:1]) == ""
