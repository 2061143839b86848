"""Causes that an engine's scraped metrics exclude, where its steps were not recorded, and the cause that they leave.

A counter that did not grow around a gap excludes what it counts. A histogram of times between tokens excludes the engine's core if it has
no time half as long as the gap. A counter that grew does not show whether it concerned this stream. So metrics name a cause only if they
exclude the engine's other causes, and the verdict is never certain.

"Around" is a minute, as the clocks may differ. If the scrapes have the server's clock it is some seconds, because a prompt is counted when
its last part is computed, and a preemption when the preempted request resumes. For several ranks behind one server the rank of a stream is
unknown: what did not happen in any of them is excluded, what happened in one of them names no cause.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.counters import grown
from legato_ingest.attribution.model.gaps import Gaps
from legato_ingest.attribution.model.scraped import (
    AROUND_NS,
    CPU_TIME,
    CPU_WAIT,
    PREEMPTIONS,
    PROMPT_TOKENS,
    SCRAPE_DISTANCE_NS_MAX,
    STOLEN,
    MetricCounter,
    ScrapedMetrics,
)
from legato_ingest.attribution.model.verdicts import Verdicts
from legato_ingest.causes import excluded_when, index_of

__all__ = ["MetricFindings", "excluded_by_metrics", "is_still", "name_by_exclusion"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

# The engine's core is excluded if it had no time between tokens longer than this share of the gap.
_INTERVAL_SHARE = 0.5
# A distance of this many times the median distance between scrapes means that one scrape is missing.
_MISSED = 2.5
# The engine waited for its host if the wait was larger by this share of the time in the gap than around it: an engine on few CPUs always
# waits a little. From the second share on another cause is not certain either.
_WAITED_MOST, _WAITED_SOME = 0.6, 0.4
_COUNTED = {PREEMPTIONS: "kv_pressure", PROMPT_TOKENS: "scheduling"}
_STILL = excluded_when("counter still")
_NO_INTERVAL = excluded_when("intervals short")
_GENERATION, _FRONT_END, _HOST = index_of("generation"), index_of("front_end"), index_of("host")
_SCHEDULING, _KV_PRESSURE = index_of("scheduling"), index_of("kv_pressure")


@dataclass(frozen=True, slots=True)
class MetricFindings:
    """What scraped metrics show about gaps, one entry a gap.

    ``excluded``: the excluded causes with the reason. ``prompts``, ``preemptions``: the counter grew around the gap, and the engine had a
    time between tokens as long as the gap. ``waited``: the engine's threads waited for a CPU for most of the gap; ``waited_some``: for so
    much of it that the host may have had a part.
    """

    excluded: list[dict[str, str]]
    prompts: Bools
    preemptions: Bools
    waited: Bools
    waited_some: Bools

    @classmethod
    def none(cls, count: int) -> MetricFindings:
        """Return the findings without metrics."""
        return cls([{} for _ in range(count)], *(np.zeros(count, np.bool_) for _ in range(4)))

    def put(self, rows: Ints, part: MetricFindings) -> None:
        """Set the findings of these gaps."""
        for row, each in zip(rows.tolist(), part.excluded, strict=True):
            self.excluded[row] = each
        self.prompts[rows], self.preemptions[rows] = part.prompts, part.preemptions
        self.waited[rows], self.waited_some[rows] = part.waited, part.waited_some


def excluded_by_metrics(metrics: ScrapedMetrics, start_ns: Ints, end_ns: Ints, same_clock: Bools) -> MetricFindings:
    """Return what the metrics of one engine show about gaps of its streams, which are given by their times at the server.

    ``same_clock``: the scrapes have the clock of the gap's server. If several hosts have an engine with this id, nothing is concluded.
    """
    out = MetricFindings.none(len(start_ns))
    if len(metrics.boots) > 1:
        return out
    before, after = metrics.around_ns(same_clock)
    low, high = start_ns - before, end_ns + after
    gap = end_ns - start_ns
    known, longest = _longest_interval_ns(metrics, low, high)
    for metric, grew in ((PREEMPTIONS, out.preemptions), (PROMPT_TOKENS, out.prompts)):
        counter = metrics.counters.get(metric)
        if counter is None:
            continue
        still = is_still(counter, low, high)
        if not metrics.has_ranks:
            grew[:] = _is_covered(counter.times_ns, low, high) & ~still & (~known | (longest >= gap))
        cause = _COUNTED[metric]
        for row in np.flatnonzero(still):
            out.excluded[row][cause] = _STILL[cause]
    for row in np.flatnonzero(known & (longest <= _INTERVAL_SHARE * gap)):
        out.excluded[row].update(_NO_INTERVAL)
    if not metrics.has_ranks:
        waited = _share_beyond_usual(metrics.counters.get(CPU_WAIT), None, start_ns, end_ns)
        stolen = _share_beyond_usual(metrics.counters.get(STOLEN), metrics.counters.get(CPU_TIME), start_ns, end_ns)
        beyond = np.maximum(waited, stolen)
        out.waited[:] = same_clock & (beyond >= _WAITED_MOST)
        out.waited_some[:] = same_clock & (beyond >= _WAITED_SOME)
    return out


def is_still(counter: MetricCounter, low_ns: Ints, high_ns: Ints) -> Bools:
    """Return whether the counter did not change in each of these stretches, with scrapes all the time."""
    return _is_covered(counter.times_ns, low_ns, high_ns, np.diff(counter.values) != 0)


def _is_covered(times_ns: Ints, low_ns: Ints, high_ns: Ints, changed: Bools | None = None) -> Bools:
    """Return whether scrapes surround each stretch, without a long distance or a change (``changed``) from one of them to the next."""
    if len(times_ns) < 2:
        return np.zeros(len(low_ns), np.bool_)
    is_doubtful = np.diff(times_ns) > SCRAPE_DISTANCE_NS_MAX
    if changed is not None:
        is_doubtful |= changed
    doubts = np.concatenate([[0], np.cumsum(is_doubtful)])
    before = np.searchsorted(times_ns, low_ns, "right") - 1
    after = np.searchsorted(times_ns, high_ns, "left")
    inside = (before >= 0) & (after < len(times_ns))
    low, high = np.maximum(before, 0), np.minimum(after, len(times_ns) - 1)
    return np.asarray(inside & (doubts[high] == doubts[low]))


def _longest_interval_ns(metrics: ScrapedMetrics, low_ns: Ints, high_ns: Ints) -> tuple[Bools, Ints]:
    """Return whether the times between tokens are known throughout each stretch, and the upper bound of the longest (0: there was none)."""
    longest = np.zeros(len(low_ns), np.int64)
    scraped = metrics.scraped_ns
    if not metrics.has_intervals or not len(scraped):
        return np.zeros(len(low_ns), np.bool_), longest
    # If a scrape is missing, its intervals may be missing, too. Counters are cumulative and lose nothing.
    distance = np.diff(scraped)
    missed = distance > _MISSED * np.median(distance) if len(distance) else distance > 0
    known = _is_covered(scraped, low_ns, high_ns, missed)
    first = np.searchsorted(metrics.interval_at_ns, low_ns, "left")
    # The next scrape reports what was observed until the end of the stretch.
    reported_ns = scraped[np.minimum(np.searchsorted(scraped, high_ns, "left"), len(scraped) - 1)]
    last = np.searchsorted(metrics.interval_at_ns, reported_ns, "right")
    for row in np.flatnonzero(known & (last > first)):
        longest[row] = metrics.interval_ns_max[first[row] : last[row]].max()
    return known, longest


def _share_beyond_usual(counter: MetricCounter | None, total: MetricCounter | None, start_ns: Ints, end_ns: Ints) -> Floats:
    """Return by how much the counter's (seconds) share of each gap exceeds its share of the time from a minute before to a minute after.

    The share is that of the passed time, or of what ``total`` counted at the same moments. It is 0 if it is unknown.
    """
    if counter is None or len(counter.times_ns) < 2:
        return np.zeros(len(start_ns))
    times, counted = counter.times_ns, grown(counter.values)
    passed = grown(total.values) if total is not None else (times - times[0]) / 1e9

    def share(low_ns: Ints, high_ns: Ints) -> Floats:
        part, whole = (np.interp(high_ns, times, each) - np.interp(low_ns, times, each) for each in (counted, passed))
        return np.asarray(part / np.maximum(whole, 1e-9))

    beyond = share(start_ns, end_ns) - share(start_ns - AROUND_NS, end_ns + AROUND_NS)
    return np.where(_is_covered(times, start_ns, end_ns), beyond, 0.0)


def name_by_exclusion(gaps: Gaps, verdicts: Verdicts, findings: MetricFindings) -> Verdicts:
    """Return the verdicts, in which ``generation`` at the server takes a cause if the metrics leave only one.

    If the core is excluded it was the front end; if the engine's threads waited for a CPU much more than usual, the host; if prompts are
    excluded and preemptions were counted, a preemption; if preemptions are excluded and prompts were counted, a prompt.
    """
    is_open = gaps.has_server & ~verdicts.aligned & (verdicts.cause == _GENERATION)

    def excludes(*causes: str) -> Bools:
        return np.array([all(cause in each for cause in causes) for each in findings.excluded], np.bool_)

    core = excludes(*_NO_INTERVAL)
    free = ~core & ~findings.waited_some
    cause, parts = verdicts.cause.copy(), verdicts.parts.copy()
    for index, which in (
        (_FRONT_END, core),
        (_HOST, ~core & findings.waited),
        (_KV_PRESSURE, free & excludes("scheduling") & findings.preemptions),
        (_SCHEDULING, free & excludes("kv_pressure") & findings.prompts),
    ):
        rows = np.flatnonzero(is_open & which)
        cause[rows] = index
        parts[rows, index] += parts[rows, _GENERATION]
        parts[rows, _GENERATION] = 0
    return replace(verdicts, cause=cause, parts=parts)
