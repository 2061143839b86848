"""Tests of the formatting of numbers and texts."""

from __future__ import annotations

import pytest

from legato_ingest.reports.format import bytes_of, clean, count, duration, n_of, ratio, share, some, sparkline


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (None, "–"), (0, "0 ms"), (1, "1 µs"), (999, "999 µs"), (1_000, "1.0 ms"), (9_949, "9.9 ms"), (9_951, "10 ms"), (412_345, "412 ms"),
        (999_499, "999 ms"), (999_500, "1.00 s"), (2_000_000, "2.00 s"), (99_940_000, "99.94 s"), (125_000_000, "2 min 5 s"),
        (119_999_999, "2 min 0 s"), (7_200_000_000, "120 min 0 s"),
    ],
)  # fmt: skip
def test_durations(microseconds: int | None, text: str) -> None:
    """A fitting unit, without a jump between two units."""
    assert duration(microseconds) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 0, "–"), (0, 9, "0 %"), (9, 9, "100 %"), (1, 3, "33.3 %"), (99_999, 100_000, "99.99 %"), (9_999_999, 10_000_000, "99.99 %"),
        (1, 10_000_000, "0.01 %"),
    ],
)  # fmt: skip
def test_shares(part: int, whole: int, text: str) -> None:
    """One bad stream of ten million prevents 100 %; one good stream prevents 0 %."""
    assert share(part, whole) == text


def test_the_rest() -> None:
    """Counts, bytes, ratios, n."""
    assert (count(12_345), count(None), n_of(1_000)) == ("12,345", "–", "n=1,000")
    assert (some(1, "stall"), some(0, "stall"), some(1_200, "stall")) == ("1 stall", "0 stalls", "1,200 stalls")
    assert (bytes_of(999), bytes_of(4_400), bytes_of(2_500_000), bytes_of(None)) == ("999 B", "4.4 kB", "2.5 MB", "–")
    assert (ratio(3.44), ratio(1_234.0), ratio(None)) == ("3.4", "1,234", "–")


def test_sparklines_show_stalls_by_height() -> None:
    """The steps include 250 ms, 400 ms, 1 s and 2 s."""
    assert sparkline([0, 24_999, 25_000, 250_000, 400_000, 1_000_000, 9_000_000]) == "▁▁▂▅▆▇█" and sparkline([]) == ""


def test_unseen_characters_become_visible() -> None:
    """In each text of a row, at any depth; numbers are unchanged."""
    row = {"model": "a\x1b[2Jb\n\x9b", "flags": ["\u202ex"], "outcomes": {"o\r": 1}, "dt_us": [1, 2], "n": None, "plain": "größe 😀"}
    assert clean(row) == {
        "model": r"a\u001b[2Jb\u000a\u009b",
        "flags": [r"\u202ex"],
        "outcomes": {r"o\u000d": 1},
        "dt_us": [1, 2],
        "n": None,
        "plain": "größe 😀",
    }
