"""What was scraped of engines around some streams, read from the store.

One idea: a counter is as many series as there are ranks, labels and scrapers, and each began when it did; so it is how far all of them
moved that counts, and where one of them is not known, nothing is. It judges nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.load.streams import Stream
from legato_ingest.attribution.model.counters import grown, server_of
from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, quoted, quoted_all, unquoted

__all__ = [
    "APART_NS_MAX",
    "AROUND_NS",
    "CPU",
    "OF_ALL_CPUS",
    "PREEMPTIONS",
    "PROMPTS",
    "STOLEN",
    "UP",
    "WAITED",
    "Counter",
    "Key",
    "Scraped",
    "boots_of",
    "scraped_of",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Key = tuple[str, str]
"""Tenant and engine."""
AROUND_NS = 60_000_000_000
"""How long before and after a gap anything is looked for, at most."""
APART_NS_MAX = 30_000_000_000
"""Two scrapes further apart than this say nothing of what was between them."""
# On one clock: a prompt is counted when its last piece is computed, so long after the gap at most.
_AFTER_NS = 3_000_000_000
PROMPTS, PREEMPTIONS = "legato.engine.tokens.prompt", "legato.engine.preemptions"
WAITED = "legato.process.run_queue.wait_time"
"""How long the engine's threads were ready to run and had no CPU, by the kernel."""
STOLEN, CPU = "stolen", "system.cpu.time"
"""Time of all CPUs of the host: what was stolen of it, and all of it."""
OF_ALL_CPUS = "attributes['cpu.logical_number'] = '' AND attributes['cpu'] = ''"
"""As the agent tells it, in SQL; a Collector tells each CPU, by newer names or older, and the two together would count everything twice."""
UP, _ITL = "legato.engine.up", "legato.engine.itl"
# What the agent says with the boot of its host: that it read a page or iterations, how many passes it heard.
_BOOT_TOLD = (UP, "legato.agent.forward_passes")
# Pages that came under their own names, by a Collector that scraped them.
_FOREIGN = {PROMPTS: "vllm:prompt_tokens_total", PREEMPTIONS: "vllm:num_preemptions_total"}
_COUNTERS = """
SELECT tenant, engine_id, metric, series, attributes['engine'] AS rank, toUnixTimestamp64Nano(recorded_at) AS at_ns, value
FROM node_samples FINAL
WHERE {inside} AND {which} AND metric IN ({metrics}) AND value IS NOT NULL AND attributes['legato.engine.page'] != 'first'
ORDER BY recorded_at
SETTINGS max_threads = 1"""
_HOSTS = """
SELECT tenant, engine_id, any(host) AS node
FROM node_samples
WHERE {inside} AND {which} AND metric = '{up}'
GROUP BY tenant, engine_id
HAVING uniqExact(host) = 1"""
_CPU_TIMES = f"""
SELECT tenant, host, toUnixTimestamp64Nano(recorded_at) AS at_ns,
    ifNull(sumIf(value, attributes['cpu.mode'] = 'steal'), 0) AS stolen, ifNull(sum(value), 0) AS passed
FROM node_samples FINAL
WHERE {{inside}} AND (tenant, host) IN ({{hosts}}) AND metric = '{CPU}' AND value IS NOT NULL
    AND attributes['cpu.mode'] != '' AND {OF_ALL_CPUS}
GROUP BY tenant, host, recorded_at
HAVING countIf(attributes['cpu.mode'] = 'steal') > 0
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
    """One counter of one engine by the scraper's clock, ascending in time: how far all of its series have moved since the first."""

    times_ns: Ints
    values: Floats


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
        apart = int(np.median(np.diff(self.seen_ns))) if len(self.seen_ns) > 1 else AROUND_NS
        near = min(2 * apart, AROUND_NS)
        return np.where(same_clock, near, AROUND_NS), np.where(same_clock, min(near + _AFTER_NS, AROUND_NS), AROUND_NS)


@dataclass(slots=True)
class _Series:
    """One series: whose it is (engine's id and rank), its times and values."""

    whose: tuple[str, str]
    times: list[int]
    values: list[float]


def scraped_of(store: Store, streams: Sequence[Stream]) -> dict[Key, Scraped]:
    """What was scraped of these streams' engines around them, by tenant and engine; of engines that are known."""
    engines = {(stream.tenant, stream.engine_id) for stream in streams if stream.engine_id}
    if not engines:
        return {}
    low, high = min(stream.start_ns for stream in streams), max(_end(stream) for stream in streams)
    window = (low - 2 * AROUND_NS, high + 2 * AROUND_NS)
    where = {"inside": between_ns("recorded_at", *window), "which": _of(engines, with_ranks=True)}
    rows, longest = _rows(store, engines, where), _longest_of(store, engines, where)
    boots, stolen = boots_of(store, engines, *window), _stolen_of(store, engines, *window)
    return {key: _scraped(own, longest.get(key, []), boots[key], stolen.get(key, {})) for key, own in rows.items()}


def _rows(store: Store, engines: Collection[Key], where: Mapping[str, str]) -> dict[Key, dict[str, list[_Series]]]:
    """Series by engine and counter."""
    metrics = quoted_all((PREEMPTIONS, PROMPTS, *_FOREIGN.values(), UP, WAITED))
    table = store.select_arrow(_COUNTERS.format(metrics=metrics, **where))
    found: dict[tuple[Key, str, int], _Series] = {}
    columns = (table[name].to_pylist() for name in ("tenant", "engine_id", "metric", "series", "rank", "at_ns", "value"))
    for tenant, engine, metric, series, rank, at_ns, value in zip(*columns, strict=True):
        for key in _whose(unquoted(tenant), unquoted(engine), engines):
            whose = (unquoted(engine), unquoted(rank))
            each = found.setdefault((key, unquoted(metric), series), _Series(whose, [], []))
            each.times.append(int(at_ns))
            each.values.append(float(value))
    out: dict[Key, dict[str, list[_Series]]] = {}
    for (key, metric, _), own in found.items():
        out.setdefault(key, {}).setdefault(metric, []).append(own)
    return out


def _longest_of(store: Store, engines: Collection[Key], where: Mapping[str, str]) -> dict[Key, list[tuple[int, float]]]:
    """When each engine told times between tokens, and the longest (s)."""
    table = store.select_arrow(_INTERVALS.format(itl=_ITL, **where))
    out: dict[Key, list[tuple[int, float]]] = {}
    columns = (table[name].to_pylist() for name in ("tenant", "engine_id", "at_ns", "longest_s"))
    for tenant, engine, at_ns, seconds in zip(*columns, strict=True):
        for key in _whose(unquoted(tenant), unquoted(engine), engines):
            out.setdefault(key, []).append((int(at_ns), float(seconds)))
    return out


def _whose(tenant: str, engine: str, engines: Collection[Key]) -> Iterable[Key]:
    """The engines that a sample is of: its own, and of a rank its server's."""
    return [key for key in dict.fromkeys(((tenant, engine), (tenant, server_of(engine)))) if key in engines]


def _stolen_of(store: Store, engines: Collection[Key], low_ns: int, high_ns: int) -> dict[Key, dict[str, Counter]]:
    """Time of all CPUs where each engine's page was read; of engines that were read on several hosts nothing."""
    inside = between_ns("recorded_at", low_ns, high_ns)
    found = store.select(_HOSTS.format(inside=inside, which=_of(engines), up=UP))
    hosts = {(str(unquoted(tenant)), str(unquoted(engine))): str(unquoted(host)) for tenant, engine, host in found}
    if not hosts:
        return {}
    wanted = ", ".join(f"({quoted(tenant)}, {quoted(host)})" for tenant, host in sorted({(key[0], host) for key, host in hosts.items()}))
    table = store.select_arrow(_CPU_TIMES.format(inside=inside, hosts=wanted))
    rows: dict[Key, list[tuple[int, float, float]]] = {}
    columns = (table[name].to_pylist() for name in ("tenant", "host", "at_ns", "stolen", "passed"))
    for tenant, host, at_ns, stolen, passed in zip(*columns, strict=True):
        rows.setdefault((unquoted(tenant), unquoted(host)), []).append((int(at_ns), float(stolen), float(passed)))
    out = {}
    for key, host in hosts.items():
        if own := rows.get((key[0], host)):
            times = np.array([at for at, _, _ in own], np.int64)
            both = np.array([each[1:] for each in own], np.float64)
            out[key] = {STOLEN: Counter(times, both[:, 0]), CPU: Counter(times, both[:, 1])}
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


def _scraped(
    rows: Mapping[str, Sequence[_Series]], longest: Sequence[tuple[int, float]], boots: frozenset[str], stolen: Mapping[str, Counter]
) -> Scraped:
    counters, ranks = dict(stolen), False
    for name in (PREEMPTIONS, PROMPTS):
        # A Collector may scrape the same page: one of the two is enough.
        if own := rows.get(name) or rows.get(_FOREIGN[name]):
            counters[name] = _moved(own)
            ranks |= len({each.whose for each in own}) > 1
    if own := rows.get(WAITED):
        counters[WAITED] = _moved(own, only_up=True)
    seen = np.unique(np.array([at for each in rows.get(UP, ()) for at in each.times], np.int64))
    at_ns = np.array([at for at, _ in longest], np.int64)
    longest_ns = (1e9 * np.array([seconds for _, seconds in longest])).astype(np.int64)
    return Scraped(counters, seen, at_ns, longest_ns, bool(longest), boots, ranks)


def _moved(series: Sequence[_Series], only_up: bool = False) -> Counter:
    """How far they moved, added up: down is a restart, which is a move, too, unless only growth counts. One that appears late has moved by
    all that it has.

    Known where each of them is: while one is not scraped nobody knows of the sum.
    """
    first = min(each.times[0] for each in series)
    all_times = [np.array(each.times, np.int64) for each in series]
    moves = []
    for each in series:
        values = np.array(each.values, np.float64)
        steps = np.diff(grown(values), prepend=0.0) if only_up else np.abs(np.diff(values, prepend=values[0]))
        if each.times[0] > first and not only_up:
            steps[0] = abs(values[0])
        moves.append(steps)
    times, places = np.unique(np.concatenate(all_times), return_inverse=True)
    total = np.asarray(np.cumsum(np.bincount(places, np.concatenate(moves), len(times))), np.float64)
    known = np.ones(len(times), np.bool_)
    for own in all_times:
        known &= ~_between(times, own)
    return Counter(times[known], total[known])


def _between(times: Ints, own: Ints) -> Bools:
    """Which of these moments are in a hole of one series, or after its last sample by as much."""
    ends = np.append(own, times[-1] + 1)
    wide = np.flatnonzero(np.diff(ends) > APART_NS_MAX)
    out = np.zeros(len(times), np.bool_)
    for hole in wide:
        out |= (times > ends[hole]) & (times < ends[hole + 1])
    return out


def _end(stream: Stream) -> int:
    return int(stream.client.times_ns[-1]) if len(stream.client.times_ns) else stream.start_ns
