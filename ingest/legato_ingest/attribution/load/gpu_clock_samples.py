"""Load the samples of an engine's GPUs: the driver's counters of throttling, and the SM clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.load.by_engine import Rows, Window, Windows, batches_of, columns_of, sample_tables, span_of
from legato_ingest.attribution.load.engine_ids import ids_of_server
from legato_ingest.attribution.load.node_samples import has_samples
from legato_ingest.attribution.model.counters import grown
from legato_ingest.attribution.model.gpu_throttle import GpuClock
from legato_ingest.attribution.model.scraped import EngineKey
from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, quoted_all, unquoted

__all__ = ["GPU_METRICS", "gpu_clocks"]

_THROTTLE_TIME, _CLOCK, _SHARED = "hw.gpu.throttle.time", "hw.gpu.clock.sm", "legato.gpu.engine"
GPU_METRICS = (_THROTTLE_TIME, _CLOCK, _SHARED)
"""The metrics that this module reads."""
# Reasons that are usual in a GPU under load.
_SOFT = ("power_cap", "sync_boost")
_NONE = np.zeros(0, np.int64)
_SAMPLES = """
SELECT
    tenant, engine_id, attributes['hw.id'] AS gpu, host, metric, attributes['reason'] AS reason,
    toUnixTimestamp64Nano(recorded_at) AS at_ns, value
FROM node_samples FINAL
WHERE {inside} AND tenant IN ({tenants}) AND metric IN ({metrics}) AND value IS NOT NULL AND engine_id IN ({ids}) AND {which}
ORDER BY at_ns"""
_SHARES = """
SELECT
    tenant, attributes['hw.id'] AS gpu, engine_id,
    toUnixTimestamp64Nano(min(recorded_at)) AS first_ns, toUnixTimestamp64Nano(max(recorded_at)) AS last_ns
FROM node_samples
WHERE {inside} AND tenant IN ({tenants}) AND metric = '{shared}'
GROUP BY tenant, gpu, engine_id"""


@dataclass(frozen=True, slots=True)
class _Sought:
    """The samples that are about one engine: those with one of these ids, and those of these GPUs, which it shares, with these ids."""

    ids: frozenset[str]
    gpus: frozenset[str] = frozenset()
    sharing_ids: frozenset[str] = frozenset()


def gpu_clocks(store: Store, windows: Windows) -> dict[EngineKey, list[GpuClock]]:
    """Return the samples of all GPUs that each engine used within its window, alone or with others, by the clock of its node.

    Engines without samples are left out. If several nodes have an engine with the same id, its GPUs cannot be assigned, and it has none.
    """
    out: dict[EngineKey, list[GpuClock]] = {}
    if not has_samples(store, GPU_METRICS, windows):
        return out
    for batch in batches_of(windows):
        where = {"inside": between_ns("recorded_at", *span_of(batch)), "tenants": quoted_all(sorted({tenant for tenant, _ in batch}))}
        sought = _sought(store, batch, where)
        for some, table in sample_tables(store, partial(_samples_sql, sought, where), batch):
            if table.num_rows:
                out.update(_by_engine(columns_of(table), {key: sought[key] for key in some}, batch))
    return out


def _samples_sql(sought: Mapping[EngineKey, _Sought], where: Mapping[str, str], engines: Iterable[EngineKey]) -> str:
    """Return the statement for the samples about these engines."""
    own = [sought[key] for key in engines]
    ids = quoted_all(sorted(frozenset().union(*(each.ids | each.sharing_ids for each in own))))
    gpus = quoted_all(sorted(frozenset().union(*(each.gpus for each in own))))
    of_engines = f"engine_id IN ({quoted_all(sorted(frozenset().union(*(each.ids for each in own))))})"
    which = f"({of_engines} OR gpu IN ({gpus}))" if gpus else of_engines
    return _SAMPLES.format(metrics=quoted_all((_THROTTLE_TIME, _CLOCK)), ids=ids, which=which, **where)


def _sought(store: Store, windows: Windows, where: Mapping[str, str]) -> dict[EngineKey, _Sought]:
    """Return the samples that are about each engine.

    The samples of a shared GPU have no engine id, or the id of the engine with processes on the complete GPU.
    """
    users: dict[tuple[str, str], list[tuple[str, int, int]]] = {}
    gpus_of: dict[EngineKey, list[tuple[str, int, int]]] = {}
    for tenant, gpu, engine, first_ns, last_ns in store.select(_SHARES.format(shared=_SHARED, **where)):
        own = str(unquoted(tenant)), str(unquoted(gpu)), str(unquoted(engine))
        users.setdefault((own[0], own[1]), []).append((own[2], int(first_ns), int(last_ns)))
        gpus_of.setdefault((own[0], own[2]), []).append((own[1], int(first_ns), int(last_ns)))

    def within(shares: Iterable[tuple[str, int, int]], window: Window) -> set[str]:
        return {name for name, first_ns, last_ns in shares if first_ns <= window[1] and last_ns >= window[0]}

    out = {}
    for (tenant, engine), window in windows.items():
        ids = ids_of_server(engine)
        gpus = frozenset(gpu for each in ids for gpu in within(gpus_of.get((tenant, each), ()), window))
        sharing = frozenset(name for gpu in gpus for name in within(users[tenant, gpu], window))
        out[tenant, engine] = _Sought(ids, gpus, ids | sharing | {""} if gpus else frozenset())
    return out


def _by_engine(rows: Rows, sought: Mapping[EngineKey, _Sought], windows: Windows) -> dict[EngineKey, list[GpuClock]]:
    """Divide the samples of several engines by engine and GPU."""
    by_id = _places(rows["tenant"], rows["engine_id"])
    by_gpu = _places(rows["tenant"], rows["gpu"]) if any(each.gpus for each in sought.values()) else {}
    out = {}
    for key, each in sought.items():
        tenant, (low, high) = key[0].encode(), windows[key]
        own = [by_id.get((tenant, name.encode()), _NONE) for name in each.ids]
        for gpu in each.gpus:
            shared = by_gpu.get((tenant, gpu.encode()), _NONE)
            own.append(shared[np.isin(rows["engine_id"][shared], [name.encode() for name in each.sharing_ids])])
        at = np.unique(np.concatenate(own))
        at = at[(rows["at_ns"][at] >= low) & (rows["at_ns"][at] <= high)]
        if len(at) and len(set(rows["host"][at].tolist())) == 1:
            own_rows = {name: column[at] for name, column in rows.items()}
            of_gpus = _places(own_rows["gpu"]).values()
            out[key] = [_gpu_clock({name: column[places] for name, column in own_rows.items()}) for places in of_gpus]
    return out


def _places(*columns: NDArray[Any]) -> dict[Any, NDArray[np.int64]]:
    """Return the places of each value, or of each tuple of values, in order."""
    places: dict[Any, list[int]] = {}
    keys = zip(*(column.tolist() for column in columns), strict=True) if len(columns) > 1 else columns[0].tolist()
    for place, value in enumerate(keys):
        places.setdefault(value, []).append(place)
    return {value: np.array(own, np.int64) for value, own in places.items()}


def _gpu_clock(rows: Rows) -> GpuClock:
    """Return one entry a moment. The times of the reasons of one kind are added up; a counter that was reset continues."""
    is_clock = rows["metric"] == _CLOCK.encode()
    # A clock without a counter of throttling at the same moment says nothing about the time between two samples.
    times = np.unique(rows["at_ns"][~is_clock]).astype(np.int64)
    hard, soft = np.zeros(len(times)), np.zeros(len(times))
    mhz = np.full(len(times), np.nan)
    at, value = rows["at_ns"][is_clock], rows["value"][is_clock]
    place = np.searchsorted(times, at)
    known = place < len(times)
    known[known] = times[place[known]] == at[known]
    mhz[place[known]] = value[known]
    counted = {name: column[~is_clock] for name, column in rows.items()}
    for reason, own in _places(counted["reason"]).items():
        total = soft if unquoted(reason) in _SOFT else hard
        total += 1e9 * np.interp(times, counted["at_ns"][own], grown(counted["value"][own].astype(np.float64)))
    return GpuClock(times, hard, soft, mhz)
