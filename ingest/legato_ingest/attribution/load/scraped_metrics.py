"""Load what was scraped of engines around some streams.

A counter consists of as many series as there are ranks, labels and scrapers, and each series has its own begin. So the growth of all series
is added up, and where one of them is not known, the sum is not known either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from legato_ingest.attribution.load.by_engine import Windows, rows_by_engine, sample_tables
from legato_ingest.attribution.load.engine_ids import is_one_of
from legato_ingest.attribution.model.scraped import (
    AROUND_NS,
    CPU_TIME,
    CPU_WAIT,
    PREEMPTIONS,
    PROMPT_TOKENS,
    SCRAPE_DISTANCE_NS_MAX,
    STOLEN,
    EngineKey,
    MetricCounter,
    ScrapedMetrics,
)
from legato_ingest.attribution.model.vantage import Stream
from legato_ingest.definitions import server_of
from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, quoted, quoted_all, unquoted

__all__ = ["OF_ALL_CPUS", "SCRAPED_METRICS", "UP", "boots_of", "scraped_metrics"]

Ints = NDArray[np.int64]

OF_ALL_CPUS = "attributes['cpu.logical_number'] = '' AND attributes['cpu'] = ''"
"""The condition for samples of all CPUs together, as the agent sends them. A Collector sends samples of each CPU, under newer attribute
names or older ones; to add both up would count everything twice."""
UP, _INTERVALS = "legato.engine.up", "legato.engine.itl"
# The metrics that the agent sends with the boot of its host: whether it could scrape the engine, and how many forward passes it received.
_WITH_BOOT = (UP, "legato.agent.forward_passes")
# The names of the same counters if a Collector scraped the engine.
_FOREIGN = {PROMPT_TOKENS: "vllm:prompt_tokens_total", PREEMPTIONS: "vllm:num_preemptions_total"}
SCRAPED_METRICS = (*_WITH_BOOT, _INTERVALS, *_FOREIGN, *_FOREIGN.values(), CPU_TIME, CPU_WAIT)
"""The metrics that this module reads, and `cpu_wait`."""
_COUNTERS = """
SELECT tenant, engine_id, metric, series, attributes['engine'] AS rank, toUnixTimestamp64Nano(recorded_at) AS at_ns, value
FROM node_samples FINAL
WHERE {inside} AND {which} AND metric IN ({metrics}) AND value IS NOT NULL AND attributes['legato.engine.page'] != 'first'
ORDER BY recorded_at"""
_HOSTS = f"""
SELECT tenant, engine_id, any(host) AS node
FROM node_samples
WHERE {{inside}} AND {{which}} AND metric = '{UP}'
GROUP BY tenant, engine_id
HAVING uniqExact(host) = 1"""
_CPU_TIMES = f"""
SELECT tenant, host, toUnixTimestamp64Nano(recorded_at) AS at_ns,
    ifNull(sumIf(value, attributes['cpu.mode'] = 'steal'), 0) AS stolen, ifNull(sum(value), 0) AS passed
FROM node_samples FINAL
WHERE {{inside}} AND (tenant, host) IN ({{hosts}}) AND metric = '{CPU_TIME}' AND value IS NOT NULL
    AND attributes['cpu.mode'] != '' AND {OF_ALL_CPUS}
GROUP BY tenant, host, recorded_at
HAVING countIf(attributes['cpu.mode'] = 'steal') > 0
ORDER BY recorded_at"""
# Only histograms with one observation per request and step: an engine that divides the time by the number of tokens makes a long time
# short.
_LONGEST = f"""
SELECT tenant, engine_id, toUnixTimestamp64Nano(recorded_at) AS at_ns,
    arrayLast((bound, count) -> count > 0, arrayConcat(bounds, [1e9]), bucket_counts) AS longest_s
FROM node_samples FINAL
WHERE {{inside}} AND {{which}} AND metric = '{_INTERVALS}' AND attributes['legato.engine.per'] = 'step'
    AND temporality = 'delta' AND length(bucket_counts) = length(bounds) + 1 AND count > 0
ORDER BY recorded_at"""
_BOOTS = f"""
SELECT tenant, engine_id, toUnixTimestamp64Nano(recorded_at) AS at_ns, attributes['legato.boot.id'] AS boot
FROM node_samples
WHERE {{inside}} AND {{which}} AND metric IN {_WITH_BOOT} AND boot != ''"""


@dataclass(slots=True)
class _Series:
    """One series: its engine id and rank, its times and values."""

    rank: tuple[str, str]
    times: list[int]
    values: list[float]


def scraped_metrics(store: Store, streams: Sequence[Stream]) -> dict[EngineKey, ScrapedMetrics]:
    """Return what was scraped around these streams of the engines that are named in them."""
    engines = {(stream.tenant, stream.engine_id) for stream in streams if stream.engine_id}
    if not engines:
        return {}
    low, high = min(stream.start_ns for stream in streams), max(_end_ns(stream) for stream in streams)
    window = (low - 2 * AROUND_NS, high + 2 * AROUND_NS)
    inside = between_ns("recorded_at", *window)
    longest, cpu = _longest_of(store, engines, inside), _cpu_times_of(store, engines, inside)
    boots = boots_of(store, dict.fromkeys(engines, window))
    series = _series_of(store, engines, inside)
    return {key: _metrics(own, longest.get(key, []), boots[key], cpu.get(key, {})) for key, own in series}


def boots_of(store: Store, windows: Windows) -> dict[EngineKey, frozenset[str]]:
    """Return the boots of the hosts on which an agent observed each of these engines within its window."""
    found = rows_by_engine(store, _BOOTS, windows, "recorded_at")
    return {key: frozenset(map(unquoted, found[key]["boot"].tolist())) if key in found else frozenset() for key in windows}


def _series_of(store: Store, engines: Collection[EngineKey], inside: str) -> Iterator[tuple[EngineKey, dict[str, list[_Series]]]]:
    """Yield the series of the counters of each engine by metric."""
    metrics = quoted_all((*_FOREIGN, *_FOREIGN.values(), UP, CPU_WAIT))

    def sql(keys: Sequence[EngineKey]) -> str:
        return _COUNTERS.format(metrics=metrics, inside=inside, which=is_one_of(keys, with_ranks=True))

    for part, table in sample_tables(store, sql, engines):
        yield from _by_metric(table, frozenset(part)).items()


def _by_metric(table: pa.Table, engines: Collection[EngineKey]) -> dict[EngineKey, dict[str, list[_Series]]]:
    found: dict[tuple[EngineKey, str, int], _Series] = {}
    columns = (table[name].to_pylist() for name in ("tenant", "engine_id", "metric", "series", "rank", "at_ns", "value"))
    for tenant, engine, metric, series, rank, at_ns, value in zip(*columns, strict=True):
        for key in _engines_of_sample(unquoted(tenant), unquoted(engine), engines):
            each = found.setdefault((key, unquoted(metric), series), _Series((unquoted(engine), unquoted(rank)), [], []))
            each.times.append(int(at_ns))
            each.values.append(float(value))
    out: dict[EngineKey, dict[str, list[_Series]]] = {}
    for (key, metric, _), own in found.items():
        out.setdefault(key, {}).setdefault(metric, []).append(own)
    return out


def _longest_of(store: Store, engines: Collection[EngineKey], inside: str) -> dict[EngineKey, list[tuple[int, float]]]:
    """Return, for each scrape with times between tokens, its time (ns) and the upper bound of the longest of them (s)."""
    out: dict[EngineKey, list[tuple[int, float]]] = {}

    def sql(keys: Sequence[EngineKey]) -> str:
        return _LONGEST.format(inside=inside, which=is_one_of(keys, with_ranks=True))

    for part, table in sample_tables(store, sql, engines):
        some = frozenset(part)
        columns = (table[name].to_pylist() for name in ("tenant", "engine_id", "at_ns", "longest_s"))
        for tenant, engine, at_ns, seconds in zip(*columns, strict=True):
            for key in _engines_of_sample(unquoted(tenant), unquoted(engine), some):
                out.setdefault(key, []).append((int(at_ns), float(seconds)))
    return out


def _engines_of_sample(tenant: str, engine: str, engines: Collection[EngineKey]) -> Iterable[EngineKey]:
    """Return the engines that a sample belongs to: the engine itself and, for a rank, its server."""
    return [key for key in dict.fromkeys(((tenant, engine), (tenant, server_of(engine)))) if key in engines]


def _cpu_times_of(store: Store, engines: Collection[EngineKey], inside: str) -> dict[EngineKey, dict[str, MetricCounter]]:
    """Return the time of all CPUs of the host where each engine was scraped. Engines that were scraped on several hosts are left out."""
    found = store.select(_HOSTS.format(inside=inside, which=is_one_of(engines)))
    hosts = {(str(unquoted(tenant)), str(unquoted(engine))): str(unquoted(host)) for tenant, engine, host in found}

    def sql(keys: Sequence[tuple[str, str]]) -> str:
        return _CPU_TIMES.format(inside=inside, hosts=", ".join(f"({quoted(tenant)}, {quoted(host)})" for tenant, host in keys))

    rows: dict[EngineKey, list[tuple[int, float, float]]] = {}
    for _, table in sample_tables(store, sql, {(key[0], host) for key, host in hosts.items()}):
        columns = (table[name].to_pylist() for name in ("tenant", "host", "at_ns", "stolen", "passed"))
        for tenant, host, at_ns, stolen, passed in zip(*columns, strict=True):
            rows.setdefault((unquoted(tenant), unquoted(host)), []).append((int(at_ns), float(stolen), float(passed)))
    out = {}
    for key, host in hosts.items():
        if own := rows.get((key[0], host)):
            times = np.array([at for at, _, _ in own], np.int64)
            values = np.array([each[1:] for each in own], np.float64)
            out[key] = {STOLEN: MetricCounter(times, values[:, 0]), CPU_TIME: MetricCounter(times, values[:, 1])}
    return out


def _metrics(
    series: Mapping[str, Sequence[_Series]],
    longest: Sequence[tuple[int, float]],
    boots: frozenset[str],
    cpu: Mapping[str, MetricCounter],
) -> ScrapedMetrics:
    """Convert the series of one engine."""
    counters, has_ranks = dict(cpu), False
    for name in (PREEMPTIONS, PROMPT_TOKENS):
        # A Collector may scrape the same endpoint as the agent: one of the two is enough.
        if own := series.get(name) or series.get(_FOREIGN[name]):
            counters[name] = _changes(own)
            has_ranks |= len({each.rank for each in own}) > 1
    if own := series.get(CPU_WAIT):
        counters[CPU_WAIT] = _changes(own, only_growth=True)
    return ScrapedMetrics(
        counters=counters,
        scraped_ns=np.unique(np.array([at for each in series.get(UP, ()) for at in each.times], np.int64)),
        interval_at_ns=np.array([at for at, _ in longest], np.int64),
        interval_ns_max=(1e9 * np.array([seconds for _, seconds in longest])).astype(np.int64),
        has_intervals=bool(longest),
        boots=boots,
        has_ranks=has_ranks,
    )


def _changes(series: Sequence[_Series], only_growth: bool = False) -> MetricCounter:
    """Add up by how much several series changed.

    A fall is a restart, which is a change, too, unless ``only_growth`` counts. A series that begins later has changed by its first value.
    The sum is known at the moments at which every series is known.
    """
    starts = np.cumsum([0, *(len(each.times) for each in series[:-1])])
    at = np.fromiter(chain.from_iterable(each.times for each in series), np.int64)
    values = np.fromiter(chain.from_iterable(each.values for each in series), np.float64)
    change = np.diff(values, prepend=values[0])
    change = np.maximum(change, 0.0) if only_growth else np.abs(change)
    change[starts] = 0.0 if only_growth else np.where(at[starts] > at.min(), np.abs(values[starts]), 0.0)
    times, places = np.unique(at, return_inverse=True)
    total = np.asarray(np.cumsum(np.bincount(places, change, len(times))), np.float64)
    known = _holes(times, places, starts) == 0
    return MetricCounter(times[known], total[known])


def _holes(times: Ints, places: Ints, starts: Ints) -> Ints:
    """Return how many series have a hole at each of these moments: between two samples, or long after the last one.

    ``places``: the moment of each sample, one series after the other; ``starts``: the first sample of each series.
    """
    nexts = np.append(places[1:], len(times))
    nexts[starts[1:] - 1] = len(times)
    ends_ns = np.append(times, times[-1] + 1)
    is_hole = ends_ns[nexts] - times[places] > SCRAPE_DISTANCE_NS_MAX
    # A hole begins behind one sample, and ends before the next one of its series.
    begun = np.bincount(places[is_hole] + 1, minlength=len(times) + 1)
    ended = np.bincount(nexts[is_hole], minlength=len(times) + 1)
    return np.asarray(np.cumsum(begun - ended)[:-1], np.int64)


def _end_ns(stream: Stream) -> int:
    return int(stream.judged.times_ns[-1]) if len(stream.judged.times_ns) else stream.start_ns
