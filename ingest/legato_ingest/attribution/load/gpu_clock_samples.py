"""When the clocks of an engine's GPUs were lowered, by the driver's own count of the time.

One idea: the driver adds up how long clocks were lowered, by reason, so nothing falls between two samples: what a step could lose to its
clock is bounded by how much that time grew around it. A limit of power is always near in a busy GPU, so it counts only where the clock
itself was seen below its usual; heat and a power brake count by their time alone. It charges nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.counters import grown, server_of, told_under
from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, quoted, quoted_all, unquoted

__all__ = ["SLOWER_MIN", "GpuClock", "Lowered", "charged", "clocks_of", "lowered"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_TIME, _CLOCK, _SHARED = "hw.gpu.throttle.time", "hw.gpu.clock.sm", "legato.gpu.engine"
# Reasons that are no news in a GPU that works hard.
_SOFT = ("power_cap", "sync_boost")
SLOWER_MIN = 0.03
"""Clocks wander by less than this share."""
# Two samples further apart say nothing of what was between them.
_APART_NS_MAX = 10_000_000_000
_SAMPLES = """
SELECT attributes['hw.id'] AS gpu, host, metric, attributes['reason'] AS reason, toUnixTimestamp64Nano(recorded_at) AS at_ns, value
FROM node_samples FINAL
WHERE {inside} AND tenant = {tenant} AND metric IN ({metrics}) AND value IS NOT NULL AND engine_id IN ({told_under}) AND ({whose})
ORDER BY at_ns
SETTINGS max_threads = 1"""
_SHARES = """
SELECT DISTINCT attributes['hw.id'] AS gpu, engine_id
FROM node_samples
WHERE {inside} AND tenant = {tenant} AND metric = '{shared}'"""


@dataclass(frozen=True, slots=True)
class GpuClock:
    """One GPU's samples, ascending: ns with lowered clocks so far, for hard reasons and soft ones, and the SM clock then (NaN: unknown)."""

    times_ns: Ints
    hard_ns: Floats
    soft_ns: Floats
    mhz: Floats


@dataclass(frozen=True, slots=True)
class Lowered:
    """One entry a step. ``known``: samples of every GPU surround it. ``hard_ns``, ``soft_ns``: the most that clocks were lowered in it, of
    any GPU. ``mhz``: the lowest clock seen around it.
    """

    known: Bools
    hard_ns: Floats
    soft_ns: Floats
    mhz: Floats

    @classmethod
    def unknown(cls, count: int) -> Lowered:
        """Nobody sampled anything."""
        none = np.zeros(count)
        return cls(np.zeros(count, np.bool_), none, none, np.full(count, np.nan))


def clocks_of(store: Store, tenant: str, engine_id: str, low_ns: int, high_ns: int) -> list[GpuClock]:
    """The GPUs that were this engine's between these times, alone or among others, by the clock of whoever sampled them: the node that the
    engine is on.
    """
    where = {"inside": between_ns("recorded_at", low_ns, high_ns), "tenant": quoted(tenant)}
    own, under = _told_of(store, engine_id, where)
    table = store.select_arrow(_SAMPLES.format(metrics=quoted_all((_TIME, _CLOCK)), told_under=under, whose=own, **where))
    if len(set(table["host"].to_pylist())) > 1:
        # Engines of several nodes have this id: nobody knows whose GPUs these are.
        return []
    rows: dict[bytes, list[tuple[bytes, bytes, int, float]]] = {}
    columns = (table[name].to_pylist() for name in ("gpu", "metric", "reason", "at_ns", "value"))
    for gpu, metric, reason, at_ns, value in zip(*columns, strict=True):
        rows.setdefault(gpu, []).append((metric, reason, int(at_ns), float(value)))
    return [_gpu(own) for own in rows.values()]


def _told_of(store: Store, engine_id: str, where: Mapping[str, str]) -> tuple[str, str]:
    """Which samples are of this engine's GPUs, and the ids under which they are told, both in SQL.

    Of a GPU that it shares they are told under nobody's id, or under that of the one whose processes are on the whole of it.
    """
    engines = told_under(engine_id)
    shares: dict[str, set[str]] = {}
    for gpu, engine in store.select(_SHARES.format(shared=_SHARED, **where)):
        shares.setdefault(str(unquoted(gpu)), set()).add(str(unquoted(engine)))
    mine = {gpu: owners for gpu, owners in shares.items() if {engine_id, server_of(engine_id)} & owners}
    own = f"engine_id IN ({engines})"
    if not mine:
        return own, engines
    return f"{own} OR gpu IN ({quoted_all(sorted(mine))})", f"{engines}, {quoted_all(sorted({'', *set().union(*mine.values())}))}"


def _gpu(rows: Sequence[tuple[bytes, bytes, int, float]]) -> GpuClock:
    """One row a moment: times of reasons added up, each going on from where it was when its counter began anew."""
    # A clock that was seen where no time was counted says nothing of what was between.
    times = np.array(sorted({at for metric, _, at, _ in rows if metric == _TIME.encode()}), np.int64)
    sums = {False: np.zeros(len(times)), True: np.zeros(len(times))}
    mhz = np.full(len(times), np.nan)
    by_reason: dict[bytes, list[tuple[int, float]]] = {}
    for metric, reason, at, value in rows:
        if metric == _CLOCK.encode():
            place = int(np.searchsorted(times, at))
            if place < len(times) and times[place] == at:
                mhz[place] = value
        else:
            by_reason.setdefault(reason, []).append((at, value))
    for reason, seen in by_reason.items():
        moments, values = np.array([at for at, _ in seen], np.int64), np.array([value for _, value in seen])
        sums[reason.decode() in _SOFT] += 1e9 * np.interp(times, moments, grown(values))
    return GpuClock(times, sums[False], sums[True], mhz)


def lowered(gpus: Sequence[GpuClock], start_ns: Ints, end_ns: Ints) -> Lowered:
    """What is known of the clocks in each of these stretches."""
    out = Lowered.unknown(len(start_ns))
    if not gpus or not len(start_ns):
        return out
    each = [_around(gpu, start_ns, end_ns) for gpu in gpus]
    hard, soft = np.stack([one.hard_ns for one in each]), np.stack([one.soft_ns for one in each])
    mhz = np.stack([np.where(np.isnan(one.mhz), np.inf, one.mhz) for one in each]).min(axis=0)
    return Lowered(
        known=np.asarray(np.stack([one.known for one in each]).all(axis=0)),
        hard_ns=hard.max(axis=0),
        soft_ns=soft.max(axis=0),
        mhz=np.where(np.isinf(mhz), np.nan, mhz),
    )


def charged(gpus: Sequence[GpuClock], end_ns: Ints, asked_ns: Floats, usual_mhz: float) -> Floats:
    """Of what each step asks for, ns of it, as much as lowered clocks can answer for. Steps follow on one another and end at ``end_ns``.

    Between two samples no more is given than clocks were counted as lowered there; a step that has part in several stretches asks in each
    for its share of time. Of several GPUs the one that answers for most: all others wait for it.
    """
    out = np.zeros(len(end_ns))
    for gpu in gpus:
        out = np.maximum(out, _charged(gpu, end_ns, asked_ns, usual_mhz))
    return out


def _charged(gpu: GpuClock, end_ns: Ints, asked_ns: Floats, usual_mhz: float) -> Floats:
    """One GPU's answer, by running totals: of what was asked, and of what is given."""
    times = gpu.times_ns
    if len(times) < 2 or not len(end_ns):
        return np.zeros(len(end_ns))
    apart = np.diff(times)
    low = np.fmin(gpu.mhz[:-1], gpu.mhz[1:]) < (1 - SLOWER_MIN) * usual_mhz
    counted = np.where(low, np.maximum(np.diff(gpu.hard_ns), np.diff(gpu.soft_ns)), np.diff(gpu.hard_ns))
    counted = np.where(apart > _APART_NS_MAX, 0.0, np.clip(counted, 0.0, apart))
    until = np.cumsum(asked_ns)
    at_samples = np.interp(times, end_ns, until)
    asked = np.diff(at_samples)
    share = np.minimum(1.0, np.divide(counted, asked, out=np.zeros_like(asked), where=asked > 0))
    given = np.concatenate([[0.0], np.cumsum(asked * share)])
    window = np.searchsorted(times, end_ns, "right") - 1
    inside = (window >= 0) & (window < len(apart))
    at = np.clip(window, 0, len(apart) - 1)
    total = np.where(inside, given[at] + share[at] * (until - at_samples[at]), np.where(window < 0, 0.0, given[-1]))
    return np.maximum(np.diff(total, prepend=total[:1]), 0.0)


def _around(gpu: GpuClock, start_ns: Ints, end_ns: Ints) -> Lowered:
    """From the last sample before each stretch to the first after it."""
    times = gpu.times_ns
    if not len(times):
        return Lowered.unknown(len(start_ns))
    before = np.searchsorted(times, start_ns, "right") - 1
    after = np.searchsorted(times, end_ns, "left")
    inside = (before >= 0) & (after < len(times))
    low, high = np.maximum(before, 0), np.minimum(after, len(times) - 1)
    gaps = np.concatenate([[0], np.cumsum(np.diff(times) > _APART_NS_MAX)])
    known = inside & (gaps[high] == gaps[low])
    took = (end_ns - start_ns).astype(np.float64)
    mhz = np.where(np.isnan(gpu.mhz), np.inf, gpu.mhz)
    lowest = np.minimum(mhz[low], mhz[high])
    # Stretches are shorter than a second or two: few hold a sample of their own.
    for row in np.flatnonzero(high - low > 1):
        lowest[row] = mhz[low[row] : high[row] + 1].min()
    return Lowered(
        known=known,
        hard_ns=np.where(known, np.clip(gpu.hard_ns[high] - gpu.hard_ns[low], 0, took), 0.0),
        soft_ns=np.where(known, np.clip(gpu.soft_ns[high] - gpu.soft_ns[low], 0, took), 0.0),
        mhz=np.where(known & ~np.isinf(lowest), lowest, np.nan),
    )
