"""Start times of counters, with bounded memory."""

from __future__ import annotations

from legato_gpu_agent.collectors.counter_starts import CounterStarts


def test_a_counter_that_went_back_started_after_it_was_last_seen() -> None:
    counters = CounterStarts()
    assert [counters.start_ns("a", value, now) for value, now in ((5, 10), (7, 20), (1, 30), (4, 40), (0, 50))] == [10, 10, 20, 20, 40]


def test_a_counter_missing_from_one_round_continues() -> None:
    """A line may be missing from a scrape, and a value may be read in every tenth round only."""
    counters = CounterStarts()
    counters.start_ns("a", 5, 10)
    for now in range(20, 100, 10):
        counters.start_ns("b", 1, now)
    assert counters.start_ns("a", 6, 100) == 10


def test_vanished_counters_are_removed() -> None:
    """For any number of them; present counters keep their start, and a round with many leaves no entries behind."""
    counters = CounterStarts()
    for now in range(1, 2_001):
        made_up = 50_000 if now == 7 else 100
        assert counters.start_ns("stays", now, now) == 1
        for number in range(made_up):
            counters.start_ns((now, number), 1.0, now)
        assert len(counters._seen) < 1_600 or now in (7, 8)
