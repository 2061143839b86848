"""The chunking detector on generated weeks: it detects, dates and classifies changes, and raises no alarm without one."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.chunking_minutes import DAY, MONDAY_S, even, series, steps
from helpers.platform.examples import examples
from legato_ingest.chunking.detector import Change, Rules, find_changes
from legato_ingest.chunking.series import DAY_S, Minutes


def minute_of(change: Change) -> int:
    """Return the date of the change in minutes since Monday."""
    return (change.changed_at_s - MONDAY_S) // 60


@pytest.mark.parametrize("busy", [0.05, 0.5, 5.0])
def test_weeks_without_a_change_are_silent(busy: float) -> None:
    """A daily cycle of ±0.03 in the share and traffic by office hours raise no alarm, from 3 streams per hour to 5 per minute."""
    assert [find_changes(series(seed, 21, busy, steps((0, 0.10)))) for seed in range(6)] == [[]] * 6


@pytest.mark.parametrize("level", [0.0, 0.01, 0.5, 0.99, 1.0])
def test_the_edges_of_the_share_are_silent(level: float) -> None:
    """A provider that always or never sends several tokens per chunk has no changes and causes no numerical error."""
    assert find_changes(series(1, 14, 3.0, steps((0, level)), cycle=0.0)) == []


@pytest.mark.parametrize("level", [0.11, 0.09])
def test_a_small_drift_is_tolerated(level: float) -> None:
    """A share that moves by 0.01 raises no alarm, even in a busy stratum."""
    assert find_changes(series(2, 21, 20.0, steps((0, 0.10), (10 * DAY, level)))) == []


@pytest.mark.parametrize(("busy", "late"), [(1.0, 600), (5.0, 180), (50.0, 90)])
def test_a_rise_is_found_and_dated(busy: float, late: int) -> None:
    """0.10 → 0.15 at 10:00: alarm within 10 h at 1 stream per minute, 3 h at 5, 1½ h at 50; dated within an hour from 5 on."""
    at = 9 * DAY + 600
    (change,) = find_changes(series(3, 12, busy, steps((0, 0.10), (at, 0.15))))
    assert change.direction == "coarser"
    assert 0 < (change.alarmed_at_s - MONDAY_S) // 60 - at <= late
    assert abs(minute_of(change) - at) <= (60 if busy >= 5 else 240)
    assert change.after - change.before == pytest.approx(0.05, abs=0.015)
    assert change.tokens_per_chunk_after - change.tokens_per_chunk_before == pytest.approx(0.05, abs=0.015)
    assert change.log_e >= math.log(10_000) and change.settled


@pytest.mark.parametrize(("busy", "late"), [(5.0, 400), (50.0, 300)])
def test_a_fall_is_found_and_dated(busy: float, late: int) -> None:
    """0.15 → 0.10 is detected by the mirrored test: later than a rise, because a rare event that gets rarer is weak evidence."""
    at = 9 * DAY + 600
    (change,) = find_changes(series(4, 12, busy, steps((0, 0.15), (at, 0.10))))
    assert (change.direction, abs(minute_of(change) - at) <= 60) == ("finer", True)
    assert 0 < (change.alarmed_at_s - MONDAY_S) // 60 - at <= late
    assert change.after - change.before == pytest.approx(-0.05, abs=0.015)


@pytest.mark.parametrize(
    ("factor", "kind", "flat"), [(1.0, "chunking change", True), (1.2, "rate change", False), (0.8, "rate change", False)]
)
def test_the_kind_depends_on_the_rate(factor: float, kind: str, flat: bool) -> None:
    """With a flat token rate it is a chunking change; if the rate moves by 20 % it is a rate change."""
    at = 9 * DAY + 600
    minutes = series(5, 12, 5.0, steps((0, 0.10), (at, 0.16)), rate=steps((0, 1.0), (at, factor)))
    (change,) = find_changes(minutes)
    assert (change.kind, change.rate_flat) == (kind, flat)
    assert change.rate_ratio == pytest.approx(factor, rel=0.03)
    assert min(change.rate_streams_before, change.rate_streams_after) > 1000


def test_an_unknown_rate_is_not_called_flat() -> None:
    """Without known rates the ratio is NaN with n = 0, and the rate is not reported as flat."""
    minutes = series(6, 12, 5.0, steps((0, 0.10), (9 * DAY, 0.30)))
    none, zero = np.zeros_like(minutes.streams), np.zeros_like(minutes.share_sum)
    blind = dataclasses.replace(minutes, rate_streams=none, log_rate_sum=zero, log_rate_sq_sum=zero)
    (change,) = find_changes(blind)
    assert math.isnan(change.rate_ratio) and not change.rate_flat
    assert (change.kind, change.rate_streams_before, change.rate_streams_after) == ("rate change", 0, 0)


def test_several_changes_in_one_series_are_found() -> None:
    """Each change starts a new reference, so the next one is found against it."""
    at = (6 * DAY + 300, 12 * DAY + 900, 17 * DAY + 100)
    changes = find_changes(series(9, 22, 5.0, steps((0, 0.10), (at[0], 0.20), (at[1], 0.10), (at[2], 0.40))))
    assert [change.direction for change in changes] == ["coarser", "finer", "coarser"]
    assert all(abs(minute_of(change) - minute) <= 60 for change, minute in zip(changes, at, strict=True))
    assert all(earlier.alarmed_at_s < later.changed_at_s for earlier, later in zip(changes, changes[1:], strict=False))


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.6), (1.0, 0.4), (0.6, 0.0)])
def test_a_provider_that_starts_or_stops_batching_is_found_at_once(before: float, after: float) -> None:
    """Between never and mostly, half an hour of 3 streams per minute is enough, and the date is right within 5 minutes."""
    at = 3 * DAY + 700
    (change,) = find_changes(series(10, 6, 3.0, steps((0, before), (at, after)), cycle=0.0))
    assert 0 < (change.alarmed_at_s - MONDAY_S) // 60 - at <= 30
    assert abs(minute_of(change) - at) <= 5
    assert change.before == pytest.approx(before, abs=0.02)
    assert change.after == pytest.approx(after, abs=0.02)


def test_missing_hours_raise_no_alarm() -> None:
    """Nights without streams and a missing day raise no alarm, and a change after them is dated."""
    at = 9 * DAY + 660
    whole = series(11, 12, 5.0, steps((0, 0.10), (at, 0.20)))
    minute = (whole.minute_s - MONDAY_S) // 60
    (change,) = find_changes(whole.pick((minute % DAY > 500) & (minute // DAY != 5)))
    assert abs(minute_of(change) - at) <= 30


def test_a_slow_route_is_found_by_a_large_change() -> None:
    """Three streams per hour: 0.10 → 0.40 is detected within two days."""
    at = 8 * DAY
    (change,) = find_changes(series(12, 14, 0.05, steps((0, 0.10), (at, 0.40)), load=even))
    assert change.direction == "coarser"
    assert 0 < (change.alarmed_at_s - MONDAY_S) // 60 - at <= 2 * DAY


def test_minutes_without_a_known_share_count_for_the_rate_alone() -> None:
    """Streams with unknown tokens per chunk do not disturb the test, and their rates count."""
    minutes = series(13, 12, 5.0, steps((0, 0.10), (9 * DAY, 0.30)))
    blind = np.arange(len(minutes.minute_s)) % 3 == 0
    streams, sums = np.where(blind, 0, minutes.streams), np.where(blind, 0.0, minutes.share_sum)
    (change,) = find_changes(dataclasses.replace(minutes, streams=streams, share_sum=sums))
    assert change.rate_streams_after > 1.3 * change.streams_after
    assert abs(minute_of(change) - 9 * DAY) <= 60


@pytest.mark.parametrize("minutes", [0, 1, 2, DAY - 1])
def test_a_series_without_a_reference_has_no_changes(minutes: int) -> None:
    """Empty, one minute, or less than a day: there is no reference."""
    whole = series(14, 1, 50.0, steps((0, 0.1), (700, 0.9)), load=even)
    assert find_changes(whole.pick(np.arange(DAY) < minutes)) == []


def test_a_shorter_reference_can_be_set() -> None:
    """With a reference of hours, a change is found within a day."""
    minutes = series(15, 1, 5.0, steps((0, 0.1), (700, 0.5)), cycle=0.0, load=even)
    (change,) = find_changes(minutes, Rules(reference_s=4 * 3600))
    assert abs(minute_of(change) - 700) <= 5


def test_a_change_stays_the_same() -> None:
    """A change does not depend on data after its alarm; only the comparison is completed, once."""
    minutes = series(16, 14, 5.0, steps((0, 0.10), (9 * DAY + 600, 0.20)))
    (final,) = find_changes(minutes)
    (early,) = find_changes(minutes.pick(minutes.minute_s <= final.alarmed_at_s))
    assert (early.settled, final.settled) == (False, True)
    fixed = ("direction", "changed_at_s", "alarmed_at_s", "log_e")
    assert [getattr(early, name) for name in fixed] == [getattr(final, name) for name in fixed]
    a_day_later = minutes.pick(minutes.minute_s <= final.changed_at_s + DAY_S + 3600)
    assert find_changes(a_day_later) == [final]


@st.composite
def any_minutes(draw: st.DrawFn) -> Minutes:
    """Return any sums that streams can have: with gaps, empty columns, and edge values."""
    length = draw(st.integers(0, 400))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    step = rng.integers(1, draw(st.sampled_from([2, 30, 2000])), length)
    counts = [rng.integers(0, draw(st.sampled_from([2, 10, 1_000_000])), length) for _ in range(3)]
    level = draw(st.lists(st.floats(0, 1), min_size=1, max_size=4))
    share = np.repeat(np.array(level, np.float64), -(-length // len(level)))[:length] if length else np.zeros(0)
    y = rng.normal(0, draw(st.sampled_from([0.0, 1.0, 10.0])), length).clip(-50, 50)
    return Minutes(
        MONDAY_S + 60 * np.cumsum(step),
        counts[0],
        counts[0] * share,
        counts[1],
        counts[1] * np.float64(2.5),
        counts[2],
        counts[2] * y,
        counts[2] * y * y,
    )


@given(any_minutes(), st.sampled_from([Rules(), Rules(reference_s=3600, threshold=20.0), Rules(tolerance=0.3, reference_s=60)]))
@examples(150)
def test_any_series_is_judged(minutes: Minutes, rules: Rules) -> None:
    """For any sums: no exception, finite evidence, and changes in order and inside the series."""
    changes = find_changes(minutes, rules)
    assert all(math.isfinite(change.log_e) and 0 <= change.before <= 1 and 0 <= change.after <= 1 for change in changes)
    assert all(minutes.minute_s[0] < change.changed_at_s <= change.alarmed_at_s <= minutes.minute_s[-1] for change in changes)
    dates = [change.changed_at_s for change in changes]
    assert dates == sorted(set(dates))


def test_a_year_takes_less_than_two_seconds() -> None:
    """525,600 minutes of one stratum with two changes a month, in seconds of CPU."""
    one = series(19, 28, 5.0, steps((0, 0.10), (14 * DAY, 0.20)), load=lambda minute, busy: np.full(len(minute), 50.0))
    columns = {field.name: np.tile(getattr(one, field.name), 13) for field in dataclasses.fields(one)}
    year = Minutes(**(columns | {"minute_s": MONDAY_S + 60 * np.arange(13 * len(one.minute_s))}))
    began = time.process_time()
    changes = find_changes(year)
    assert time.process_time() - began < 2
    assert len(changes) == 25


@pytest.mark.parametrize(
    "rules",
    [{"tolerance": 0.0}, {"tolerance": 1.0}, {"reference_s": 0}, {"threshold": 1.0}, {"threshold": math.inf}, {"tolerance": math.nan}],
)
def test_rules_out_of_range_are_rejected(rules: dict[str, Any]) -> None:
    """Rules out of range raise ``ValueError``."""
    with pytest.raises(ValueError, match="cannot be used; expected 0 < tolerance < 1"):
        Rules(**rules)
