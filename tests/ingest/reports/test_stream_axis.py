"""Tests of the order of recordings and of the clock that they share."""

from __future__ import annotations

from legato_ingest.reports.stream_axis import first_starts, ordered, shared_clock


def test_order_is_by_stream_then_from_engine_to_end_user() -> None:
    """Two streams of one trace keep their vantages together; an unknown vantage comes last."""
    names = (("client", "b", 50), ("other", "a", 5), ("client", "a", 10), ("engine", "b", "60"), ("server", "a", 20))
    rows = [{"vantage": vantage, "response_id": response, "start_ns": start} for vantage, response, start in names]
    found = [(row["response_id"], row["vantage"]) for row in ordered(rows)]
    assert found == [("a", "server"), ("a", "client"), ("a", "other"), ("b", "engine"), ("b", "client")]
    assert first_starts(rows) == {"a": 5, "b": 50} and ordered([]) == []


def test_a_clock_is_shared_when_boot_and_namespace_are() -> None:
    """Starts on the shared monotonic clock, without the anchors, which were taken at different moments."""
    a, b = {"clock": "boot:4026:1000", "start_ns": 5_000}, {"clock": "boot:4026:900", "start_ns": 5_000}
    assert shared_clock([a, b]) == [4_000, 4_100]
    for other in ("boot:4027:900", "other:4026:900", "", "boot:4026", "boot:4026:x", "a:b:c:1"):
        assert shared_clock([a, {"clock": other, "start_ns": 5_000}]) is None
    assert shared_clock([{"clock": "b:1:-5", "start_ns": 1}]) == [6]
