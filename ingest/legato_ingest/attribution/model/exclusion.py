"""What an engine's own figures rule out, where its steps were not recorded but its page was scraped.

One idea: a counter that did not move around a gap rules out what it counts, and a histogram of times between tokens that has none as long
as half the gap rules the engine's core out; one that did says nothing of this stream. Around is a minute, as clocks may disagree; where
page and server are of one host's clock it is some seconds, as a prompt is counted when its last piece is computed and a preemption when its
victim resumes. So scrapes name a cause only where they have ruled out the engine's others, and are never sure. Of several ranks behind one
server nobody knows whose a stream is: what stood still in all of them is ruled out, and what moved in one of them says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.load.scraped_metrics import (
    APART_NS_MAX,
    AROUND_NS,
    CPU,
    PREEMPTIONS,
    PROMPTS,
    STOLEN,
    WAITED,
    Counter,
    Scraped,
)
from legato_ingest.attribution.model.charge import CAUSES, Gaps, Verdicts
from legato_ingest.attribution.model.counters import grown

__all__ = ["MOVED", "by_exclusion", "excluded_by", "still"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
# The engine's core is out of the question when it made no interval longer than this share of the gap.
_HALF = 0.5
# Readings further apart than so many times the usual: one is missing.
_MISSED = 2.5
# They waited for the host when it was so much more of the gap than of the time around it: an engine on few CPUs always waits a little.
# From less on, it is not said to have been another.
_WAITED_MORE, _WAITED_SOME = 0.6, 0.4
# What a counter that stands still rules out, and why.
_RULED_OUT = {
    PREEMPTIONS: ("kv_pressure", "its engine counted no preemption around it"),
    PROMPTS: ("scheduling", "its engine counted no prompt around it"),
}
MOVED = ("scheduling", "kv_pressure", "host", "busy")
"""Causes that something counts; ``busy``: the host may have had a part."""
_CORE = ("scheduling", "kv_pressure", "gpu_clock", "host")
_MADE_NONE = "its engine made no time between tokens half as long around it"
_GENERATION, _FRONT_END, _KV, _SCHEDULING, _HOST = (
    CAUSES.index(name) for name in ("generation", "front_end", "kv_pressure", "scheduling", "host")
)


def still(counter: Counter, low_ns: Ints, high_ns: Ints) -> Bools:
    """Whether the counter stood still in each of these stretches, with scrapes all the while."""
    return _covered(counter.times_ns, low_ns, high_ns, np.diff(counter.values) != 0)


def _covered(times_ns: Ints, low_ns: Ints, high_ns: Ints, changed: Bools) -> Bools:
    """Whether scrapes surround each stretch, none too far from the next, and nothing ``changed`` between two of them."""
    if len(times_ns) < 2:
        return np.zeros(len(low_ns), np.bool_)
    doubts = np.concatenate([[0], np.cumsum(changed | (np.diff(times_ns) > APART_NS_MAX))])
    before = np.searchsorted(times_ns, low_ns, "right") - 1
    after = np.searchsorted(times_ns, high_ns, "left")
    inside = (before >= 0) & (after < len(times_ns))
    low, high = np.maximum(before, 0), np.minimum(after, len(times_ns) - 1)
    return np.asarray(inside & (doubts[high] == doubts[low]))


def _longest(scraped: Scraped, low_ns: Ints, high_ns: Ints) -> tuple[Bools, Ints]:
    """Whether the engine's times between tokens are known throughout each of these stretches, and what the longest was at most (ns)."""
    longest = np.zeros(len(low_ns), np.int64)
    if not scraped.intervals or not len(scraped.seen_ns):
        return np.zeros(len(low_ns), np.bool_), longest
    # A reading that is missing may have been lost with what it brought: counters make up for it, what came between two readings is gone.
    apart = np.diff(scraped.seen_ns)
    known = _covered(scraped.seen_ns, low_ns, high_ns, apart > _MISSED * np.median(apart) if len(apart) else apart > 0)
    first = np.searchsorted(scraped.long_at_ns, low_ns, "left")
    # What was observed until the end of a stretch is told by the next scrape.
    told_ns = scraped.seen_ns[np.minimum(np.searchsorted(scraped.seen_ns, high_ns, "left"), len(scraped.seen_ns) - 1)]
    last = np.searchsorted(scraped.long_at_ns, told_ns, "right")
    for row in np.flatnonzero(known & (last > first)):
        longest[row] = scraped.longest_ns[first[row] : last[row]].max()
    return known, longest


def excluded_by(scraped: Scraped, start_ns: Ints, end_ns: Ints, same_clock: Bools) -> tuple[list[dict[str, str]], dict[str, Bools]]:
    """By cause, why it is out of the question for each of these gaps; and by cause, whether what counts it did move around the gap, and the
    engine made a time between tokens as long. Of engines of several nodes under one id nothing is said, and of ranks not what moved.
    """
    before, after = scraped.around(same_clock)
    low, high = start_ns - before, end_ns + after
    out: list[dict[str, str]] = [{} for _ in start_ns]
    moved = {cause: np.zeros(len(start_ns), np.bool_) for cause in MOVED}
    if len(scraped.boots) > 1:
        return out, moved
    known, longest = _longest(scraped, low, high)
    gap = end_ns - start_ns
    for name, (cause, why) in _RULED_OUT.items():
        counter = scraped.counters.get(name)
        if counter is None:
            continue
        stood = still(counter, low, high)
        covered = _covered(counter.times_ns, low, high, np.zeros(max(len(counter.times_ns) - 1, 0), np.bool_))
        if not scraped.ranks:
            moved[cause] = covered & ~stood & (~known | (longest >= gap))
        for row in np.flatnonzero(stood):
            out[row][cause] = why
    for row in np.flatnonzero(known & (longest <= _HALF * gap)):
        out[row].update(dict.fromkeys(_CORE, _MADE_NONE))
    waited = _more(scraped.counters.get(WAITED), None, start_ns, end_ns)
    stolen = _more(scraped.counters.get(STOLEN), scraped.counters.get(CPU), start_ns, end_ns)
    more = np.maximum(waited, stolen)
    if not scraped.ranks:
        moved["host"], moved["busy"] = same_clock & (more >= _WAITED_MORE), same_clock & (more >= _WAITED_SOME)
    return out, moved


def _more(counter: Counter | None, whole: Counter | None, start_ns: Ints, end_ns: Ints) -> NDArray[np.float64]:
    """How much more ``counter`` (seconds) had of each gap than of the minute before and after it; 0 where nobody knows.

    Of the time that passed, or of what ``whole`` counted at the same moments.
    """
    if counter is None or len(counter.times_ns) < 2:
        return np.zeros(len(start_ns))
    counted, passed = grown(counter.values), grown(whole.values) if whole is not None else (counter.times_ns - counter.times_ns[0]) / 1e9

    def share(low_ns: Ints, high_ns: Ints) -> NDArray[np.float64]:
        part, all_ = (np.interp(high_ns, counter.times_ns, each) - np.interp(low_ns, counter.times_ns, each) for each in (counted, passed))
        return np.asarray(part / np.maximum(all_, 1e-9))

    covered = _covered(counter.times_ns, start_ns, end_ns, np.zeros(len(counter.times_ns) - 1, np.bool_))
    return np.where(covered, share(start_ns, end_ns) - share(start_ns - AROUND_NS, end_ns + AROUND_NS), 0.0)


def by_exclusion(gaps: Gaps, verdicts: Verdicts, excluded: Sequence[Mapping[str, str]], moved: Mapping[str, Bools]) -> Verdicts:
    """Give what the server waited for its engine a name, where the scrapes leave one.

    With the core out of the question it was the front end; where its threads waited for a CPU as they seldom do, the host; with prompts out
    and preemptions counted, a preemption; with preemptions out and prompts counted, a prompt. Of gaps that the server saw too and no step
    explains.
    """
    open_ = gaps.has_server & ~verdicts.laid & (verdicts.cause == _GENERATION)
    core = np.array([all(cause in each for cause in _CORE) for each in excluded], np.bool_)
    out = {cause: np.array([cause in each for each in excluded], np.bool_) for cause in ("scheduling", "kv_pressure")}
    named = (
        (_FRONT_END, core),
        (_HOST, ~core & moved["host"]),
        (_KV, ~core & ~moved["busy"] & out["scheduling"] & moved["kv_pressure"]),
        (_SCHEDULING, ~core & ~moved["busy"] & out["kv_pressure"] & moved["scheduling"]),
    )
    cause, parts = verdicts.cause.copy(), verdicts.parts.copy()
    for name, which in named:
        rows = np.flatnonzero(open_ & which)
        cause[rows] = name
        parts[rows, name] += parts[rows, _GENERATION]
        parts[rows, _GENERATION] = 0
    return replace(verdicts, cause=cause, parts=parts)
