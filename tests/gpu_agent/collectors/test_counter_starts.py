"""Since when counters count, of those that are told, whatever else was told once."""

from __future__ import annotations

from legato_gpu_agent.collectors.counter_starts import Counters


def test_a_counter_that_went_back_began_anew_after_it_was_last_seen() -> None:
    counters = Counters()
    assert [counters.since_ns("a", value, now) for value, now in ((5, 10), (7, 20), (1, 30), (4, 40), (0, 50))] == [10, 10, 20, 20, 40]


def test_one_that_is_left_out_once_goes_on() -> None:
    """A page may miss a line, and a figure may be asked for every tenth round."""
    counters = Counters()
    counters.since_ns("a", 5, 10)
    for now in range(20, 100, 10):
        counters.since_ns("b", 1, now)
    assert counters.since_ns("a", 6, 100) == 10


def test_names_that_are_made_up_are_forgotten() -> None:
    """However many and for however long: those that stay keep their time, and a page of many leaves nothing behind."""
    counters = Counters()
    for now in range(1, 2_001):
        made_up = 50_000 if now == 7 else 100
        assert counters.since_ns("stays", now, now) == 1
        for number in range(made_up):
            counters.since_ns((now, number), 1.0, now)
        assert len(counters._seen) < 1_600 or now in (7, 8)
