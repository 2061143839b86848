"""Finds when a provider, a proxy or an engine began to cut its streams into other chunks than before.

One idea: once the share of multi-token chunks has been seen for a day, each minute's mean is bet on staying within 0.02 of what that
hour had; whoever wins ten thousandfold has shown a change (``chunking_bets.py``). The change is dated by the cut that best parts two
levels near where the winning began, compared with the week before (``chunking_effect.py``), and the search begins anew behind it. It is
called a chunking change only where the rate of tokens was shown to be flat. It reads no store and knows one stratum at a time.

Valid: while each minute's mean, given the past, stays within its hour's expectation ± (tolerance + that expectation's error), 10,000
minutes or more pass on average before a side alarms, whatever the distribution and the dependence. Heuristic: that the expectation is
right. A stratum whose weekend differs by more than the tolerance may alarm in its first week, one that drifts by less in a week never
does, and a change within the reference day is seen late. When a change was, and that it was, rests on nothing later than its alarm.
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

# A share of 0 or 1 is expected as if it were this far inside: no bet may be staked on the impossible.
_EDGE = 0.02

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rules:
    """``tolerance``: how far the mean share may drift unseen. ``reference_s``: how long a reference is at least; less than a day makes
    every daily cycle a change. ``threshold``: minutes between false alarms, on average, at least, per side.
    """

    tolerance: float = 0.02
    reference_s: int = DAY_S
    threshold: float = THRESHOLD

    def __post_init__(self) -> None:
        if not (0.0 < self.tolerance < 1.0 and self.reference_s > 0 and 1.0 < self.threshold < np.inf):
            raise ValueError(f"{self} cannot be used; expected 0 < tolerance < 1, reference_s > 0 and a finite threshold above 1")


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a stratum's chunking. Times are the starts of minutes, Unix seconds.

    ``direction``: "coarser" if more chunks hold several tokens than before. ``before``, ``after``: mean share of multi-token chunks over
    ``streams_before`` and ``streams_after`` streams, the week before against the time since (a day, or to the alarm if that is later),
    hours of the day matched. ``rate_ratio``: tokens per second, after over before. NaN is "not known". ``kind`` is "chunking change"
    where ``rate_flat``: the rate was shown to be within 5 %; else "rate change", also where too few rates are known to show it.
    ``log_e``: ln of the evidence at the alarm. ``settled``: the time since is complete, so nothing here will change any more.
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
    """All changes of one stratum, in order of time; none before a reference (200 streams, a day) is complete.

    Linear time in the minutes. Minutes in which no share is known count for the rate of tokens alone. Method: mixture e-SR detector
    (Shin, Ramdas & Rinaldo 2022) on minute means.
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
    """The place after the reference that begins at ``start``: it has enough streams and time, and reaches ``least``."""
    if start >= len(minutes.minute_s):
        return None
    filled = int(np.searchsorted(minutes.running_streams, minutes.running_streams[start] + REFERENCE_STREAMS))
    passed = int(np.searchsorted(minutes.minute_s, minutes.minute_s[start] + reference_s))
    end = max(filled, passed, least)
    return end if end < len(minutes.minute_s) else None


def _alarm(minutes: Minutes, start: int, end: int, rules: Rules) -> Alarm | None:
    """The first alarm behind the reference ``[start, end)``, with places in ``minutes``."""
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
    """Where a series of at least two sums over ``n`` streams each is best cut in a lower and a higher mean: the place after the cut.

    Least squares for one step up, which for a small step dates better than the bets: their limit lies above the middle of the step.
    """
    streams, total = np.cumsum(n), np.cumsum(sums)
    head, tail = streams[:-1], streams[-1] - streams[:-1]
    step = (total[-1] - total[:-1]) / tail - total[:-1] / head
    return int(np.argmax(head / streams[-1] * tail * step * np.abs(step))) + 1


def _describe(minutes: Minutes, shares: Minutes, start: int, alarm: Alarm, rules: Rules) -> Change:
    """The change that an alarm has shown: ``start`` and the alarm are places in ``shares``, the comparison uses all ``minutes``."""
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
        before=share.before,
        after=share.after,
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
