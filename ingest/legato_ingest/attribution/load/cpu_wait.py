"""Load how long an engine's threads waited for a CPU, and how much CPU time was stolen from its hosts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from legato_ingest.attribution.load.engine_ids import ids_of_server
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
SELECT metric, series, host, toUnixTimestamp64Nano(recorded_at) AS at_ns, value, {OF_ALL_CPUS} AS is_total
FROM node_samples FINAL
WHERE {{inside}} AND tenant = {{tenant}} AND {{which}} AND value IS NOT NULL
ORDER BY metric, series, host, at_ns
SETTINGS max_threads = 1"""


def cpu_samples(store: Store, key: EngineKey, low_ns: int, high_ns: int, by_scrapes: bool = False) -> CpuSamples:
    """Return the samples between these times, by the clock of the engine's node.

    ``by_scrapes``: where no process of the engine is sampled, the host that scraped the engine counts as its host.
    """
    where = {"inside": between_ns("recorded_at", low_ns, high_ns), "tenant": quoted(key[0])}
    engines = ids_of_server(key[1])
    metrics = (CPU_WAIT, UP) if by_scrapes else (CPU_WAIT,)
    own = _series(store, _SAMPLES.format(which=f"metric IN ({quoted_all(metrics)}) AND engine_id IN ({engines})", **where))
    waits, scrapes = own.get(CPU_WAIT, []), own.get(UP, [])
    hosts = sorted({series.host for series in (*waits, *scrapes)})
    if not hosts:
        return CpuSamples()
    on_hosts = f"metric = '{CPU_TIME}' AND engine_id IN ('', {engines}) AND host IN ({quoted_all(hosts)}) AND {_IS_STEAL}"
    return CpuSamples(waits, _series(store, _SAMPLES.format(which=on_hosts, **where)).get(CPU_TIME, []), scrapes)


def _series(store: Store, sql: str) -> dict[str, list[CpuSeries]]:
    """Return the series of the query's rows by metric."""
    table = store.select_arrow(sql)
    names = [(unquoted(metric), unquoted(host)) for metric, host in zip(_column(table, "metric"), _column(table, "host"), strict=True)]
    keys = list(zip(names, _column(table, "series"), strict=True))
    starts = [row for row in range(len(keys)) if row == 0 or keys[row] != keys[row - 1]]
    times, seconds = (np.asarray(table[name].to_numpy()) for name in ("at_ns", "value"))
    totals = _column(table, "is_total")
    out: dict[str, list[CpuSeries]] = {}
    for first, end in zip(starts, [*starts[1:], len(keys)], strict=False):
        (metric, host), own = names[first], slice(first, end)
        series = CpuSeries(host, times[own].astype(np.int64), seconds[own].astype(np.float64), bool(totals[first]))
        out.setdefault(metric, []).append(series)
    return out


def _column(table: pa.Table, name: str) -> list[Any]:
    values: list[Any] = table[name].to_pylist()
    return values
