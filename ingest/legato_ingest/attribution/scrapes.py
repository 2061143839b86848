"""What an engine's own figures rule out, where its steps were not recorded but its page was scraped.

One idea: a counter that did not move around a gap rules out what it counts, and a histogram of times between tokens that has none as long
as half the gap rules the engine's core out; one that did says nothing of this stream. Around is a minute, as clocks may disagree; where
page and server are of one host's clock it is some seconds, as a prompt is counted when its last piece is computed and a preemption when its
victim resumes. So scrapes name a cause only where they have ruled out the engine's others, and are never sure. Of several ranks behind one
server nobody knows whose a stream is: what stood still in all of them is ruled out, and what moved in one of them says nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.counters import grown
from legato_ingest.attribution.evidence import Stream
from legato_ingest.attribution.stalls import CAUSES, Gaps, Verdicts
from legato_ingest.literals import between_ns, quoted, quoted_all, unquoted
from legato_ingest.store import Store

__all__ = ["MOVED", "Counter", "Scraped", "boots_of", "by_exclusion", "excluded_by", "scraped_of", "still"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Key = tuple[str, str]
_AROUND_NS = 60_000_000_000
# On one clock: a prompt is counted when its last piece is computed, so long after the gap at most.
_AFTER_NS = 3_000_000_000
# Two scrapes further apart than this say nothing of what was between them.
_APART_NS_MAX = 30_000_000_000
# The engine's core is out of the question when it made no interval longer than this share of the gap.
_HALF = 0.5
# Readings further apart than so many times the usual: one is missing.
_MISSED = 2.5
_UP, _ITL = "legato.engine.up", "legato.engine.itl"
_PROMPTS, _PREEMPTIONS = "legato.engine.tokens.prompt", "legato.engine.preemptions"
# What the agent says with the boot of its host: that it read a page or iterations, how many passes it heard.
_BOOT_TOLD = (_UP, "legato.agent.forward_passes")
# How long the engine's threads were ready to run and had no CPU, by the kernel.
_WAITED = "legato.process.run_queue.wait_time"
# They waited for the host when it was so much more of the gap than of the time around it: an engine on few CPUs always waits a little.
# From less on, it is not said to have been another.
_WAITED_MORE, _WAITED_SOME = 0.6, 0.4
# Time of all CPUs of the host: what was stolen of it, and all of it.
_STOLEN, _CPU = "stolen", "system.cpu.time"
# Pages that came under their own names, by a Collector that scraped them.
_FOREIGN = {_PROMPTS: "vllm:prompt_tokens_total", _PREEMPTIONS: "vllm:num_preemptions_total"}
# What a counter that stands still rules out, and why.
_RULED_OUT = {
    _PREEMPTIONS: ("kv_pressure", "its engine counted no preemption around it"),
    _PROMPTS: ("scheduling", "its engine counted no prompt around it"),
}
MOVED = ("scheduling", "kv_pressure", "host", "busy")
"""Causes that something counts; ``busy``: the host may have had a part."""
_CORE = ("scheduling", "kv_pressure", "gpu_clock", "host")
_MADE_NONE = "its engine made no time between tokens half as long around it"
_GENERATION, _FRONT_END, _KV, _SCHEDULING, _HOST = (
    CAUSES.index(name) for name in ("generation", "front_end", "kv_pressure", "scheduling", "host")
)
_COUNTERS = """
SELECT tenant, engine_id, metric, toUnixTimestamp64Nano(recorded_at) AS at_ns, sum(value) AS total
FROM node_samples FINAL
WHERE {inside} AND {which} AND metric IN ({metrics}) AND value IS NOT NULL AND attributes['legato.engine.page'] != 'first'
GROUP BY tenant, engine_id, metric, recorded_at
ORDER BY recorded_at
SETTINGS max_threads = 1"""
_HOSTS = """
SELECT tenant, engine_id, any(host) AS node
FROM node_samples
WHERE {inside} AND {which} AND metric = '{up}'
GROUP BY tenant, engine_id
HAVING uniqExact(host) = 1"""
_CPU_TIMES = """
SELECT tenant, host, toUnixTimestamp64Nano(recorded_at) AS at_ns,
    sumIf(value, attributes['cpu.mode'] = 'steal') AS stolen, sum(value) AS passed
FROM node_samples FINAL
WHERE {inside} AND (tenant, host) IN ({hosts}) AND metric = '{cpu}' AND value IS NOT NULL
GROUP BY tenant, host, recorded_at
ORDER BY recorded_at
SETTINGS max_threads = 1"""
# One observation a request and step; where an engine divides it by the tokens that came, a long one may look short.
_INTERVALS = """
SELECT tenant, engine_id, toUnixTimestamp64Nano(recorded_at) AS at_ns,
    arrayLast((bound, count) -> count > 0, arrayConcat(bounds, [1e9]), bucket_counts) AS longest_s
FROM node_samples FINAL
WHERE {inside} AND {which} AND metric = '{itl}' AND attributes['legato.engine.per'] = 'step'
    AND temporality = 'delta' AND length(bucket_counts) = length(bounds) + 1 AND count > 0
ORDER BY recorded_at
SETTINGS max_threads = 1"""
_BOOTS = """
SELECT DISTINCT tenant, engine_id, attributes['legato.boot.id'] AS boot
FROM node_samples
WHERE {inside} AND {which} AND metric IN ({told}) AND boot != ''"""


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter of one engine by the scraper's clock, ascending in time; series of one scrape added up."""

    times_ns: Ints
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scraped:
    """What was scraped of one engine: counters by signal; when its page was read; and of each reading that had any, what its longest time
    between tokens was at most (ns). ``intervals``: whether its page tells those times at all. ``boots``: on which hosts it was read.
    ``ranks``: whether several behind one server were told under this id, added up here.
    """

    counters: Mapping[str, Counter]
    seen_ns: Ints
    long_at_ns: Ints
    longest_ns: Ints
    intervals: bool
    boots: frozenset[str] = frozenset()
    ranks: bool = False

    def around(self, same_clock: Bools) -> tuple[Ints, Ints]:
        """How long before and after each gap to look: two scrapes and a little more where the clock is the server's, else a minute."""
        apart = int(np.median(np.diff(self.seen_ns))) if len(self.seen_ns) > 1 else _AROUND_NS
        near = min(2 * apart, _AROUND_NS)
        return np.where(same_clock, near, _AROUND_NS), np.where(same_clock, min(near + _AFTER_NS, _AROUND_NS), _AROUND_NS)


def scraped_of(store: Store, streams: Sequence[Stream]) -> dict[Key, Scraped]:
    """What was scraped of these streams' engines around them, by tenant and engine; of engines that are known."""
    engines = {(stream.tenant, stream.engine_id) for stream in streams if stream.engine_id}
    if not engines:
        return {}
    low, high = min(stream.start_ns for stream in streams), max(_end(stream) for stream in streams)
    window = (low - 2 * _AROUND_NS, high + 2 * _AROUND_NS)
    where = {"inside": between_ns("recorded_at", *window), "which": _of(engines, with_ranks=True)}
    names = quoted_all((*_RULED_OUT, *_FOREIGN.values(), _UP, _WAITED))
    table = store.select_arrow(_COUNTERS.format(metrics=names, **where))
    totals: dict[tuple[Key, str], dict[int, float]] = {}
    ids: dict[Key, set[str]] = {}
    columns = (table[name].to_pylist() for name in ("tenant", "engine_id", "metric", "at_ns", "total"))
    for tenant, engine, metric, at_ns, total in zip(*columns, strict=True):
        key = _whose(unquoted(tenant), unquoted(engine), engines)
        if unquoted(metric) not in (_UP, _WAITED):
            ids.setdefault(key, set()).add(unquoted(engine))
        # One scrape has one time: ranks that it found are added up.
        own = totals.setdefault((key, unquoted(metric)), {})
        own[int(at_ns)] = own.get(int(at_ns), 0.0) + float(total)
    rows = {name: list(own.items()) for name, own in totals.items()}
    table = store.select_arrow(_INTERVALS.format(itl=_ITL, **where))
    longest: dict[Key, list[tuple[int, float]]] = {}
    columns = (table[name].to_pylist() for name in ("tenant", "engine_id", "at_ns", "longest_s"))
    for tenant, engine, at_ns, seconds in zip(*columns, strict=True):
        longest.setdefault(_whose(unquoted(tenant), unquoted(engine), engines), []).append((int(at_ns), float(seconds)))
    boots, stolen = boots_of(store, engines, *window), _stolen_of(store, engines, *window)
    out = {}
    for key in {key for key, _ in rows}:
        own_pages = _scraped(key, rows, longest.get(key, []))
        counters = {**own_pages.counters, **stolen.get(key, {})}
        out[key] = replace(own_pages, counters=counters, boots=boots[key], ranks=len(ids.get(key, ())) > 1)
    return out


def _whose(tenant: str, engine: str, engines: Collection[Key]) -> Key:
    """The engine that a sample is of: ranks are told under the id of their server and a slash."""
    return (tenant, engine) if (tenant, engine) in engines else (tenant, engine.split("/")[0])


def _stolen_of(store: Store, engines: Collection[Key], low_ns: int, high_ns: int) -> dict[Key, dict[str, Counter]]:
    """Time of all CPUs where each engine's page was read; of engines that were read on several hosts nothing."""
    inside = between_ns("recorded_at", low_ns, high_ns)
    found = store.select(_HOSTS.format(inside=inside, which=_of(engines), up=_UP))
    hosts = {(str(unquoted(tenant)), str(unquoted(engine))): str(unquoted(host)) for tenant, engine, host in found}
    if not hosts:
        return {}
    wanted = ", ".join(f"({quoted(tenant)}, {quoted(host)})" for tenant, host in sorted({(key[0], host) for key, host in hosts.items()}))
    table = store.select_arrow(_CPU_TIMES.format(inside=inside, hosts=wanted, cpu=_CPU))
    rows: dict[Key, list[tuple[int, float, float]]] = {}
    columns = (table[name].to_pylist() for name in ("tenant", "host", "at_ns", "stolen", "passed"))
    for tenant, host, at_ns, stolen, passed in zip(*columns, strict=True):
        rows.setdefault((unquoted(tenant), unquoted(host)), []).append((int(at_ns), float(stolen), float(passed)))
    out = {}
    for key, host in hosts.items():
        if own := rows.get((key[0], host)):
            times = np.array([at for at, _, _ in own], np.int64)
            both = np.array([each[1:] for each in own], np.float64)
            out[key] = {_STOLEN: Counter(times, both[:, 0]), _CPU: Counter(times, both[:, 1])}
    return out


def boots_of(store: Store, keys: Collection[Key], low_ns: int, high_ns: int) -> dict[Key, frozenset[str]]:
    """On which boots of which hosts each of these engines was read between these times, as the agent told them."""
    where = {"inside": between_ns("recorded_at", low_ns, high_ns), "which": _of(keys), "told": quoted_all(_BOOT_TOLD)}
    out: dict[Key, set[str]] = {key: set() for key in keys}
    for tenant, engine, boot in store.select(_BOOTS.format(**where)):
        out[str(unquoted(tenant)), str(unquoted(engine))].add(str(unquoted(boot)))
    return {key: frozenset(boots) for key, boots in out.items()}


def _of(keys: Collection[Key], with_ranks: bool = False) -> str:
    """The samples of these engines, in SQL."""
    own = "(tenant, engine_id) IN (" + ", ".join(f"({quoted(tenant)}, {quoted(engine)})" for tenant, engine in sorted(keys)) + ")"
    if not with_ranks:
        return own
    ranks = [f"(tenant = {quoted(tenant)} AND startsWith(engine_id, {quoted(engine + '/')}))" for tenant, engine in sorted(keys)]
    return f"({' OR '.join((own, *ranks))})"


def _scraped(key: Key, rows: Mapping[tuple[Key, str], list[tuple[int, float]]], longest: list[tuple[int, float]]) -> Scraped:
    counters = {}
    for name in (*_RULED_OUT, _WAITED):
        # A Collector may scrape the same page: one of the two is enough, and both would be a counter that moves to and fro.
        if own := rows.get((key, name)) or rows.get((key, _FOREIGN.get(name, ""))):
            counters[name] = Counter(np.array([at for at, _ in own], np.int64), np.array([value for _, value in own]))
    seen = np.array([at for at, _ in rows.get((key, _UP), [])], np.int64)
    at_ns = np.array([at for at, _ in longest], np.int64)
    return Scraped(counters, seen, at_ns, (1e9 * np.array([seconds for _, seconds in longest])).astype(np.int64), bool(longest))


def still(counter: Counter, low_ns: Ints, high_ns: Ints) -> Bools:
    """Whether the counter stood still in each of these stretches, with scrapes all the while."""
    return _covered(counter.times_ns, low_ns, high_ns, np.diff(counter.values) != 0)


def _covered(times_ns: Ints, low_ns: Ints, high_ns: Ints, changed: Bools) -> Bools:
    """Whether scrapes surround each stretch, none too far from the next, and nothing ``changed`` between two of them."""
    if len(times_ns) < 2:
        return np.zeros(len(low_ns), np.bool_)
    doubts = np.concatenate([[0], np.cumsum(changed | (np.diff(times_ns) > _APART_NS_MAX))])
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
    waited = _more(scraped.counters.get(_WAITED), None, start_ns, end_ns)
    stolen = _more(scraped.counters.get(_STOLEN), scraped.counters.get(_CPU), start_ns, end_ns)
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
    return np.where(covered, share(start_ns, end_ns) - share(start_ns - _AROUND_NS, end_ns + _AROUND_NS), 0.0)


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


def _end(stream: Stream) -> int:
    return int(stream.client.times_ns[-1]) if len(stream.client.times_ns) else stream.start_ns
