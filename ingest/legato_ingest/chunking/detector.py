"""Detects when a provider, a proxy or an engine began to cut its streams into chunks of another size.

The first day of a stratum is its reference. From then on each minute's mean share of multi-token chunks is tested against the expectation
for its hour, ± 0.02. When the e-process reaches 10,000, the change is detected (``e_process``). Its date is the minute that best separates
two levels near the start of the growth; its size is the comparison with the week before (``effect``). The search then continues with a new
reference. The kind is "chunking change" only if the token rate was shown to be flat. The module reads no store and handles one stratum.

What is guaranteed: while each minute's mean, given the past, stays within its hour's expectation ± (tolerance + the expectation's error),
10,000 minutes or more pass on average before one side raises an alarm, for any distribution and any dependence. What is heuristic: the
expectation. A stratum with a weekend that differs by more than the tolerance may raise an alarm in its first week; one that drifts by less
per week never does; a change within the reference day is detected late. The existence and date of a change use no data after its alarm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from legato_ingest.chunking.e_process import THRESHOLD, Alarm, first_alarm
from legato_ingest.chunking.effect import means, rate
from legato_ingest.chunking.series import DAY_S, REFERENCE_STREAMS, WEEK_S, Minutes, expect

__all__ = ["Change", "Rules", "find_changes"]

# Expected shares of 0 or 1 are moved inside by this much: the e-process needs limits in (0, 1).
_EDGE = 0.02

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rules:
    """The detector's parameters. ``tolerance``: how far the mean share may drift without an alarm. ``reference_s``: minimum length of a
    reference in seconds; with less than a day every daily cycle is a change. ``threshold``: the least mean number of minutes between false
    alarms, per side. Raises ``ValueError`` for values out of range.
    """

    tolerance: float = 0.02
    reference_s: int = DAY_S
    threshold: float = THRESHOLD

    def __post_init__(self) -> None:
        if not (0.0 < self.tolerance < 1.0 and self.reference_s > 0 and 1.0 < self.threshold < np.inf):
            raise ValueError(f"{self} cannot be used; expected 0 < tolerance < 1, reference_s > 0 and a finite threshold above 1")


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a stratum's chunking. Times are the starts of minutes, in Unix seconds.

    ``direction``: "coarser" if more chunks than before hold several tokens. ``before``, ``after``: mean share of multi-token chunks over
    ``streams_before`` and ``streams_after`` streams, in the week before the change and after it (one day, or until the alarm if that is
    later), by hour of the day. ``rate_ratio``: tokens per second, after divided by before; NaN if unknown. ``kind`` is "chunking change" if
    ``rate_flat`` (the rate was shown to differ by less than 5 %), otherwise "rate change", also if too few rates are known. ``log_e``: ln
    of the e-process at the alarm. ``settled``: the time after the change is complete, so these numbers are final.
    """

    kind: Literal["chunking change", "rate change"]
    direction: Literal["coarser", "finer"]
    changed_at_s: int
    alarmed_at_s: int
    before: float
    after: float
    tokens_per_chunk_before: float
    tokens_per_chunk_after: float
    rate_ratio: float
    rate_flat: bool
    log_e: float
    streams_before: int
    streams_after: int
    rate_streams_before: int
    rate_streams_after: int
    settled: bool


def find_changes(minutes: Minutes, rules: Rules | None = None) -> list[Change]:
    """Return all changes of one stratum, in time order; none before a reference (200 streams and a day) is complete.

    Runs in linear time. Minutes without a known share count only for the token rate. Method: mixture e-SR detector (Shin, Ramdas &
    Rinaldo 2022) on the minutes' means.
    """
    rules = rules or Rules()
    shares = minutes.pick(minutes.streams > 0)
    changes: list[Change] = []
    start, least = 0, 0
    while (end := _reference_end(shares, start, least, rules.reference_s)) is not None:
        alarm = _alarm(shares, start, end, rules)
        if alarm is None:
            break
        changes.append(_describe(minutes, shares, start, alarm, rules))
        start, least = alarm.began, alarm.at + 1
    return changes


def _reference_end(minutes: Minutes, start: int, least: int, reference_s: int) -> int | None:
    """Return the index after the reference that begins at ``start``: it has enough streams and time, and ends at ``least`` or later."""
    if start >= len(minutes.minute_s):
        return None
    filled = int(np.searchsorted(minutes.running_streams, minutes.running_streams[start] + REFERENCE_STREAMS))
    passed = int(np.searchsorted(minutes.minute_s, minutes.minute_s[start] + reference_s))
    end = max(filled, passed, least)
    return end if end < len(minutes.minute_s) else None


def _alarm(minutes: Minutes, start: int, end: int, rules: Rules) -> Alarm | None:
    """Return the first alarm after the reference ``[start, end)``, with indices into ``minutes``."""
    expected = expect(minutes, start, end)
    room = rules.tolerance + expected.error
    hour = minutes.hours.of_minute
    upper = np.maximum(expected.mean, _EDGE) + room
    lower = np.minimum(expected.mean, 1.0 - _EDGE) - room
    alarm = first_alarm(minutes.shares[end:], upper[hour[end:]], lower[hour[end:]], rules.threshold)
    if alarm is None:
        return None
    at, began = alarm.at + end, alarm.began + end
    day_before = int(np.searchsorted(minutes.minute_s, minutes.minute_s[began] - DAY_S))
    earliest = max(start, min(day_before, began - 1))
    part = slice(earliest, at + 1)
    off = minutes.share_sum[part] - minutes.streams[part] * expected.mean[hour[part]]
    return replace(alarm, at=at, began=earliest + _split(minutes.streams[part], off if alarm.rose else -off))


def _split(n: Ints, sums: Floats) -> int:
    """Return the index after the best cut of a series of two or more sums, over ``n`` streams each, into a lower and a higher mean.

    Least squares for one step up. For a small step this is more exact than the start of the e-process's growth, because the limit of the
    e-process lies above the middle of the step.
    """
    streams, total = np.cumsum(n), np.cumsum(sums)
    head, tail = streams[:-1], streams[-1] - streams[:-1]
    step = (total[-1] - total[:-1]) / tail - total[:-1] / head
    return int(np.argmax(head / streams[-1] * tail * step * np.abs(step))) + 1


def _describe(minutes: Minutes, shares: Minutes, start: int, alarm: Alarm, rules: Rules) -> Change:
    """Return the change behind an alarm. ``start`` and the alarm are indices into ``shares``; the comparison uses all ``minutes``."""
    changed_at_s, alarmed_at_s = int(shares.minute_s[alarm.began]), int(shares.minute_s[alarm.at])
    first_s = max(int(shares.minute_s[start]), int(shares.minute_s[alarm.began - 1]) - WEEK_S)
    until_s = max(changed_at_s + rules.reference_s, alarmed_at_s + 60)
    edges = np.searchsorted(minutes.minute_s, [first_s, changed_at_s, until_s])
    before, after = slice(edges[0], edges[1]), slice(edges[1], edges[2])
    share = means(minutes, "share_sum", "streams", before, after)
    tokens = means(minutes, "tokens_per_chunk_sum", "chunking_streams", before, after)
    rates = rate(minutes, before, after)
    return Change(
        kind="chunking change" if rates.flat else "rate change",
        direction="coarser" if alarm.rose else "finer",
        changed_at_s=changed_at_s,
        alarmed_at_s=alarmed_at_s,
        # Rounding can lift a weighted mean of shares slightly above 1.
        before=min(share.before, 1.0),
        after=min(share.after, 1.0),
        tokens_per_chunk_before=tokens.before,
        tokens_per_chunk_after=tokens.after,
        rate_ratio=rates.ratio,
        rate_flat=rates.flat,
        log_e=alarm.log_e,
        streams_before=share.streams_before,
        streams_after=share.streams_after,
        rate_streams_before=rates.streams_before,
        rate_streams_after=rates.streams_after,
        settled=bool(minutes.minute_s[-1] >= until_s),
    )
