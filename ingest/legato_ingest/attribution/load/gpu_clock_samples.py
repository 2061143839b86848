"""Load the samples of an engine's GPUs: the driver's counters of throttling, and the SM clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from legato_ingest.attribution.load.engine_ids import ids_of_server
from legato_ingest.attribution.model.counters import grown
from legato_ingest.attribution.model.gpu_throttle import GpuClock
from legato_ingest.attribution.model.scraped import EngineKey
from legato_ingest.definitions import server_of
from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, quoted, quoted_all, unquoted

__all__ = ["GPU_METRICS", "gpu_clocks"]

_THROTTLE_TIME, _CLOCK, _SHARED = "hw.gpu.throttle.time", "hw.gpu.clock.sm", "legato.gpu.engine"
GPU_METRICS = (_THROTTLE_TIME, _CLOCK, _SHARED)
"""The metrics that this module reads."""
# Reasons that are usual in a GPU under load.
_SOFT = ("power_cap", "sync_boost")
_SAMPLES = """
SELECT attributes['hw.id'] AS gpu, host, metric, attributes['reason'] AS reason, toUnixTimestamp64Nano(recorded_at) AS at_ns, value
FROM node_samples FINAL
WHERE {inside} AND tenant = {tenant} AND metric IN ({metrics}) AND value IS NOT NULL AND engine_id IN ({ids}) AND ({which})
ORDER BY at_ns
SETTINGS max_threads = 1"""
_SHARES = """
SELECT DISTINCT attributes['hw.id'] AS gpu, engine_id
FROM node_samples
WHERE {inside} AND tenant = {tenant} AND metric = '{shared}'"""


def gpu_clocks(store: Store, key: EngineKey, low_ns: int, high_ns: int) -> list[GpuClock]:
    """Return the samples of all GPUs that the engine used between these times, alone or with others, by the clock of its node.

    If several nodes have an engine with this id, the GPUs cannot be assigned, and the result is empty.
    """
    where = {"inside": between_ns("recorded_at", low_ns, high_ns), "tenant": quoted(key[0])}
    which, ids = _samples_of(store, key[1], where)
    table = store.select_arrow(_SAMPLES.format(metrics=quoted_all((_THROTTLE_TIME, _CLOCK)), ids=ids, which=which, **where))
    if len(set(table["host"].to_pylist())) > 1:
        return []
    rows: dict[str, list[tuple[str, str, int, float]]] = {}
    columns = (table[name].to_pylist() for name in ("gpu", "metric", "reason", "at_ns", "value"))
    for gpu, metric, reason, at_ns, value in zip(*columns, strict=True):
        rows.setdefault(unquoted(gpu), []).append((unquoted(metric), unquoted(reason), int(at_ns), float(value)))
    return [_gpu_clock(own) for own in rows.values()]


def _samples_of(store: Store, engine_id: str, where: Mapping[str, str]) -> tuple[str, str]:
    """Return the condition for the samples of the engine's GPUs, and the ids under which they are stored, both in SQL.

    The samples of a shared GPU have no engine id, or the id of the engine with processes on the complete GPU.
    """
    engines = ids_of_server(engine_id)
    shares: dict[str, set[str]] = {}
    for gpu, engine in store.select(_SHARES.format(shared=_SHARED, **where)):
        shares.setdefault(str(unquoted(gpu)), set()).add(str(unquoted(engine)))
    mine = {gpu: users for gpu, users in shares.items() if {engine_id, server_of(engine_id)} & users}
    own = f"engine_id IN ({engines})"
    if not mine:
        return own, engines
    return f"{own} OR gpu IN ({quoted_all(sorted(mine))})", f"{engines}, {quoted_all(sorted({'', *set().union(*mine.values())}))}"


def _gpu_clock(rows: Sequence[tuple[str, str, int, float]]) -> GpuClock:
    """Return one entry a moment. The times of the reasons of one kind are added up; a counter that was reset continues."""
    # A clock without a counter of throttling at the same moment says nothing about the time between two samples.
    times = np.array(sorted({at for metric, _, at, _ in rows if metric == _THROTTLE_TIME}), np.int64)
    hard, soft = np.zeros(len(times)), np.zeros(len(times))
    mhz = np.full(len(times), np.nan)
    by_reason: dict[str, list[tuple[int, float]]] = {}
    for metric, reason, at, value in rows:
        if metric == _CLOCK:
            place = int(np.searchsorted(times, at))
            if place < len(times) and times[place] == at:
                mhz[place] = value
        else:
            by_reason.setdefault(reason, []).append((at, value))
    for reason, samples in by_reason.items():
        moments, values = np.array([at for at, _ in samples], np.int64), np.array([value for _, value in samples])
        total = soft if reason in _SOFT else hard
        total += 1e9 * np.interp(times, moments, grown(values))
    return GpuClock(times, hard, soft, mhz)
