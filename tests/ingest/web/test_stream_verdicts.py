"""Tests of the words and the parts of a verdict on a stream's page."""

from __future__ import annotations

from legato_ingest.web.stream_verdicts import engine_of, evidence_in_words, parts_us


def test_parts_add_up_in_microseconds() -> None:
    """Negative parts are left out; rounding loses no microsecond."""
    parts = {"base": 20_000_700, "host": 600_000_700, "front_end": 1_600, "connection": -5_000_000}
    assert parts_us(parts) == {"base": 20_000, "host": 600_001, "front_end": 2}
    assert sum(parts_us(parts).values()) == (20_000_700 + 600_000_700 + 1_600) // 1_000
    assert parts_us({}) == {} and parts_us({"host": "1500"}) == {"host": 1}


def test_evidence_is_in_sentences() -> None:
    """Lengths with their units, flags, counts and the kernel's counters; what has no sentence is left out."""
    evidence: dict[str, int | str] = {
        "server_gap_us": "12697215", "hold_us": 0, "record_late_us": 7_900, "buffered": 0, "unread": 1, "open": 0, "preempted_step": 1591,
        "throttled_us": 500_000, "clock_mhz": 1200, "clock_usual_mhz": 1980, "cpu_wait_us": 200, "cpu_wait_of_us": 2_000_000, "other": 3,
    }  # fmt: skip
    assert evidence_in_words(evidence) == [
        "The server sent the next chunk after 12.70 s.",
        "The engine's record arrived 7.9 ms after its step.",
        "The request was preempted in step 1,591.",
        "The chunks arrived in separate reads.",
        "Data lay unread in the client's socket.",
        "The driver throttled a GPU for 500 ms, down to 1,200 MHz of 1,980 MHz.",
        "The engine's threads were ready without a CPU for 200 µs in total in the 2.00 s around it.",
    ]


def test_the_engine_is_that_of_most_stalls() -> None:
    """Without a verdict that names one, the first vantage with an engine counts."""
    rows = [{"engine_id": ""}, {"engine_id": "server"}]
    assert engine_of([{"engine_id": "rank/1"}, {"engine_id": "rank/0"}, {"engine_id": "rank/1"}], rows) == "rank/1"
    assert engine_of([{"engine_id": ""}], rows) == "server" and engine_of([], rows[:1]) == ""
