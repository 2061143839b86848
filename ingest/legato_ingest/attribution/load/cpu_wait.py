"""Load how long an engine's threads waited for a CPU, and how much CPU time was stolen from its hosts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from legato_ingest.attribution.load.by_engine import Window, Windows, batches_of, columns_of, sample_tables, span_of
from legato_ingest.attribution.load.engine_ids import ids_of_server, is_one_of, is_one_of_servers
from legato_ingest.attribution.load.node_samples import has_samples
from legato_ingest.attribution.load.scraped_metrics import OF_ALL_CPUS, UP
from legato_ingest.attribution.model.cpu_wait import CpuSamples, CpuSeries
from legato_ingest.attribution.model.scraped import CPU_TIME, CPU_WAIT, EngineKey
from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, quoted, quoted_all, unquoted

__all__ = ["cpu_samples"]

# The attribute's name in the semantic conventions, and in older Collectors.
_IS_STEAL = "(attributes['cpu.mode'] = 'steal' OR attributes['state'] = 'steal')"
# By series, as the counter of one process or CPU may be reset while the others go on.
_SAMPLES = f"""
SELECT tenant, engine_id, metric, series, host, toUnixTimestamp64Nano(recorded_at) AS at_ns, value, {OF_ALL_CPUS} AS is_total
FROM node_samples FINAL
WHERE {{inside}} AND {{which}} AND value IS NOT NULL
ORDER BY tenant, engine_id, metric, series, host, at_ns"""


def cpu_samples(store: Store, windows: Windows, by_scrapes: bool = False) -> dict[EngineKey, CpuSamples]:
    """Return the samples of each engine's host within its window, by the clock of the engine's node.

    ``by_scrapes``: where no process of the engine is sampled, the host that scraped the engine counts as its host.
    """
    out = dict.fromkeys(windows, CpuSamples())
    metrics = (CPU_WAIT, UP) if by_scrapes else (CPU_WAIT,)
    if not has_samples(store, metrics, windows):
        return out
    for batch in batches_of(windows):
        inside = between_ns("recorded_at", *span_of(batch))
        own = _of_engines(store, inside, metrics, batch)
        times = _of_hosts(store, inside, batch, {(each.tenant, each.series.host) for each in own})
        by_engine = _grouped(own, lambda each: (each.tenant, each.engine_id))
        by_host = _grouped(times, lambda each: (each.tenant, each.series.host))
        out.update({key: _samples_of(key, window, by_engine, by_host) for key, window in batch.items()})
    return out


@dataclass(frozen=True, slots=True)
class _Read:
    """One series: what it is about, and its samples."""

    tenant: str
    engine_id: str
    metric: str
    series: CpuSeries


def _of_engines(store: Store, inside: str, metrics: Sequence[str], engines: Windows) -> list[_Read]:
    """Return the series with an id of these engines, each once."""
    ids = {(tenant, each) for tenant, engine in engines for each in ids_of_server(engine)}

    def sql(keys: Sequence[EngineKey]) -> str:
        return _SAMPLES.format(inside=inside, which=f"metric IN ({quoted_all(metrics)}) AND {is_one_of(keys)}")

    return [each for _, table in sample_tables(store, sql, ids) for each in _read(table)]


def _of_hosts(store: Store, inside: str, engines: Windows, hosts: Collection[tuple[str, str]]) -> list[_Read]:
    """Return the series of the stolen time of these hosts (each with its tenant)."""
    # The time of a host's CPUs is sampled once, or with the id of an engine on it.
    of_engines = f"(engine_id = '' OR {is_one_of_servers(engines)})"

    def sql(keys: Sequence[tuple[str, str]]) -> str:
        on_hosts = f"(tenant, host) IN ({', '.join(f'({quoted(tenant)}, {quoted(host)})' for tenant, host in keys)})"
        return _SAMPLES.format(inside=inside, which=f"metric = '{CPU_TIME}' AND {on_hosts} AND {of_engines} AND {_IS_STEAL}")

    return [each for _, table in sample_tables(store, sql, hosts) for each in _read(table)]


def _read(table: pa.Table) -> list[_Read]:
    """Return the series of these rows."""
    rows = columns_of(table)
    names = ("tenant", "engine_id", "metric", "host", "series")
    keys = list(zip(*(rows[name].tolist() for name in names), strict=True))
    starts = [row for row in range(len(keys)) if row == 0 or keys[row] != keys[row - 1]]
    out = []
    for first, end in zip(starts, [*starts[1:], len(keys)], strict=False):
        tenant, engine, metric, host, _ = map(unquoted, keys[first])
        times, seconds = rows["at_ns"][first:end].astype(np.int64), rows["value"][first:end].astype(np.float64)
        out.append(_Read(tenant, engine, metric, CpuSeries(host, times, seconds, bool(rows["is_total"][first]))))
    return out


def _grouped(series: Iterable[_Read], key: Callable[[_Read], tuple[str, str]]) -> dict[tuple[str, str], list[_Read]]:
    out: dict[tuple[str, str], list[_Read]] = {}
    for each in series:
        out.setdefault(key(each), []).append(each)
    return out


def _samples_of(
    key: EngineKey,
    window: Window,
    by_engine: Mapping[tuple[str, str], Sequence[_Read]],
    by_host: Mapping[tuple[str, str], Sequence[_Read]],
) -> CpuSamples:
    """Return the samples of one engine: those with an id of its server, and the CPU times of the hosts that these name."""
    tenant, ids = key[0], ids_of_server(key[1])
    found: dict[str, list[CpuSeries]] = {CPU_WAIT: [], UP: []}
    for each in (each for engine in sorted(ids) for each in by_engine.get((tenant, engine), ())):
        if (part := each.series.within(*window)) is not None:
            found[each.metric].append(part)
    hosts = sorted({series.host for of_metric in found.values() for series in of_metric})
    stolen = [
        part
        for host in hosts
        for each in by_host.get((tenant, host), ())
        if each.engine_id in {"", *ids} and (part := each.series.within(*window))
    ]
    return CpuSamples(found[CPU_WAIT], stolen, found[UP])
