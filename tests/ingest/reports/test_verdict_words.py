"""Tests of the words of a verdict's evidence."""

from __future__ import annotations

from legato_ingest.reports.verdict_words import phrases, sentences


def test_evidence_is_in_sentences() -> None:
    """Lengths with their units, flags, counts and the kernel's counters; what has no sentence is left out."""
    evidence: dict[str, int | str] = {
        "server_gap_us": "12697215", "hold_us": 0, "record_late_us": 7_900, "buffered": 0, "unread": 1, "open": 0, "preempted_step": 1591,
        "throttled_us": 500_000, "clock_mhz": 1200, "clock_usual_mhz": 1980, "cpu_wait_us": 200, "cpu_wait_of_us": 2_000_000, "other": 3,
    }  # fmt: skip
    assert sentences(evidence) == [
        "The server sent the next chunk after 12.70 s.",
        "The engine's record arrived 7.9 ms after its step.",
        "The request was preempted in step 1,591.",
        "No usual release of a buffer ended the gap.",
        "Data lay unread in the client's socket.",
        "The driver throttled a GPU for 500 ms, down to 1,200 MHz of 1,980 MHz.",
        "The engine's threads were ready without a CPU for 200 µs in total in the 2.00 s around it.",
    ]


def test_phrases_are_the_sentences_without_their_marks() -> None:
    """The command line lists what the page says. Nothing is said about zero lengths or half a counter."""
    evidence = {"hold_us": "1000", "caught_up_percent": "80", "coincident_stalls": "1234", "buffered": "1", "other_ranks": "1"}
    assert phrases(evidence) == [
        "the application held the chunk for 1.0 ms",
        "80 % of the missing chunks arrived right behind the gap",
        "1,234 other streams had the same gap at the same moment with this cause",
        "the stream arrived in releases of several chunks",
        "another rank of the server had prefill or recompute in these steps, and the ranks wait for each other",
    ]
    assert [f"{words[0].upper()}{words[1:]}." for words in phrases(evidence)] == sentences(evidence)
    assert phrases({"hold_us": 0, "cpu_wait_us": 5, "clock_mhz": 900}) == []
