"""The watermark: no row gets a stamp at or before a reported watermark, whatever the clock does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from legato_ingest.storage.watermark import Watermark


def test_a_watermark_stops_before_the_rows_being_written() -> None:
    """While rows are written it is just before their stamp; afterwards it follows the clock."""
    now = 1000
    mark = Watermark(0, lambda: now, lambda: 7)
    with mark.stamp() as stamp_ms:
        assert stamp_ms == 1000 and mark.reached_ms() == 999
        now = 5000
        assert mark.reached_ms() == 999
    assert mark.reached_ms() == 5000


def test_it_begins_after_the_watermark_of_an_earlier_process() -> None:
    """Also if the clock is behind it."""
    mark = Watermark(2000, lambda: 1000, lambda: 7)
    assert mark.reached_ms() == 2000
    with mark.stamp() as stamp_ms:
        assert stamp_ms == 2001


def test_a_failed_write_advances_it_too() -> None:
    """The stamp is not used again."""
    mark = Watermark(0, lambda: 1000, lambda: 7)
    try:
        with mark.stamp():
            raise OSError
    except OSError:
        pass
    assert mark.reached_ms() == 1000
    with mark.stamp() as stamp_ms:
        assert stamp_ms == 1001


@given(clock=st.lists(st.integers(0, 50), min_size=1, max_size=60), writes=st.lists(st.booleans(), min_size=60, max_size=60))
def test_no_stamp_is_at_or_before_a_reported_watermark(clock: list[int], writes: list[bool]) -> None:
    """With a clock that goes forward and back at random."""
    at, reached = 0, 0
    mark = Watermark(0, lambda: clock[at], lambda: at)
    for at, is_write in enumerate(writes[: len(clock)]):  # noqa: B007 - the clock reads `at`
        if is_write:
            with mark.stamp() as stamp_ms:
                assert stamp_ms > reached
                assert mark.reached_ms() < stamp_ms
        assert mark.reached_ms() >= reached
        reached = mark.reached_ms()


def test_time_goes_on_after_the_clock_was_set_back() -> None:
    """Else the watermark would stand still until the clock has caught up. A clock that is a little behind is waited for."""
    now = {"clock": 0, "passed": 0}
    mark = Watermark(0, lambda: now["clock"], lambda: now["passed"])
    for clock, passed, expected in (
        (500_000, 0, 500_000), (100_000, 10, 500_010), (100_090, 100, 500_100), (900_000, 200, 900_000),
        (870_000, 300, 900_000), (899_999, 30_300, 900_000), (900_500, 30_800, 900_500), (600_000, 31_000, 900_700),
    ):  # fmt: skip
        now.update(clock=clock, passed=passed)
        assert mark.reached_ms() == expected
    with mark.stamp() as stamp_ms:
        assert stamp_ms == 900_701
    again = Watermark(900_701, lambda: now["clock"], lambda: now["passed"])
    now["passed"] += 1_000
    assert again.reached_ms() == 901_701


def test_the_first_stamp_after_a_time() -> None:
    """Of the finished ones; the oldest are forgotten."""
    clock = iter(range(1_000, 10_000))
    watermark = Watermark(0, lambda: next(clock), lambda: 0)
    assert watermark.stamp_after(0) is None
    stamps = []
    for _ in range(3):
        with watermark.stamp() as stamp:
            stamps.append(stamp)
            assert watermark.stamp_after(stamp - 1) is None
    assert [watermark.stamp_after(ms) for ms in (0, stamps[0] - 1, stamps[0], stamps[1], stamps[2])] == [
        stamps[0], stamps[0], stamps[1], stamps[2], None,
    ]  # fmt: skip
    for _ in range(1_000):
        with watermark.stamp():
            pass
    # The first ones are forgotten: there may have been one right after that time.
    assert watermark.stamp_after(stamps[0]) == stamps[0] + 1
