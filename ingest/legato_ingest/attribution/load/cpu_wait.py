"""How long an engine's threads were ready and had no CPU, and how much of its host's CPUs was stolen, by the kernel's own counts.

One idea: both are totals, so what they grew by between the samples that surround a stall is a fact, whatever happened between two of them.
It is evidence beside what the steps say: a step that took longer than its work explains is the host's with it or without it, as a process
that is stopped waits in no queue. It charges nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.load.scraped_metrics import AROUND_NS, CPU, OF_ALL_CPUS, UP, WAITED
from legato_ingest.attribution.model.charge import CAUSES, Gaps, Verdicts
from legato_ingest.attribution.model.counters import grown, told_under
from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, quoted, unquoted

__all__ = ["CpuWaits", "waited_beside", "waits_of"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Of a smaller part of a gap nobody asks what it was.
_PART_WORTH = 0.05
_HOST = CAUSES.index("host")
# Samples further apart say too little of a stall between them.
_APART_NS_MAX = 10_000_000_000
_SECONDS_MAX = 1e9
# As semantic conventions have it now, and as Collectors that are older do.
_STEAL = "(attributes['cpu.mode'] = 'steal' OR attributes['state'] = 'steal')"
# By series, as a counter of one process or CPU may begin anew while the others go on.
_COUNTED = """
SELECT series, toUnixTimestamp64Nano(recorded_at) AS at_ns, value
FROM node_samples FINAL
WHERE {inside} AND tenant = {tenant} AND {which} AND value IS NOT NULL
ORDER BY series, at_ns
SETTINGS max_threads = 1"""
_HOSTS = """
SELECT DISTINCT host
FROM node_samples
WHERE {inside} AND tenant = {tenant} AND metric = '{told}' AND engine_id IN ({engines})"""


@dataclass(frozen=True, slots=True)
class _Counter:
    """One counter, ascending in time: ns since its first sample, going on from where it was when it began anew."""

    times_ns: Ints
    total_ns: Ints

    def around(self, start_ns: Ints, end_ns: Ints) -> tuple[Bools, Ints, Ints]:
        """Of each stretch: whether two samples surround it closely, by how much it grew between them, and how far apart they are."""
        before = np.searchsorted(self.times_ns, start_ns, "right") - 1
        after = np.searchsorted(self.times_ns, end_ns, "left")
        low, high = np.maximum(before, 0), np.minimum(after, len(self.times_ns) - 1)
        apart = self.times_ns[high] - self.times_ns[low]
        known = (before >= 0) & (after < len(self.times_ns)) & (apart - (end_ns - start_ns) < _APART_NS_MAX)
        return known, self.total_ns[high] - self.total_ns[low], apart


@dataclass(frozen=True, slots=True)
class CpuWaits:
    """What the kernel counted where an engine runs: how long its threads waited for a CPU, and how long CPUs were stolen."""

    waited: Sequence[_Counter] = ()
    stolen: Sequence[_Counter] = ()

    def evidence(self, start_ns: Ints, end_ns: Ints) -> list[dict[str, int]]:
        """Of each stretch by the clock of the engine's records, what was counted around it (µs), and for how long that was.

        Of all processes and all CPUs that were sampled then, added up.
        """
        out: list[dict[str, int]] = [{} for _ in start_ns]
        for name, counters in (("cpu_wait", self.waited), ("cpu_stolen", self.stolen)):
            for counter in counters:
                known, counted, apart = counter.around(start_ns, end_ns)
                for row in np.flatnonzero(known):
                    each = out[row]
                    each[f"{name}_us"] = each.get(f"{name}_us", 0) + round(counted[row] / 1000)
                    each[f"{name}_of_us"] = max(each.get(f"{name}_of_us", 0), round(apart[row] / 1000))
        return out


def waited_beside(
    store: Store, tenant: str, engine_id: str, gaps: Gaps, verdicts: Verdicts, own: Ints, by_page: bool = False
) -> dict[int, dict[str, int]]:
    """By its place, what the kernel counted beside each gap of which the host has a part worth telling, of those that are this engine's
    ``own``. ``by_page``: they were named by its page, on the host that read it.
    """
    rows = own[verdicts.parts[own, _HOST] >= _PART_WORTH * (gaps.end_ns - gaps.start_ns)[own]]
    if not len(rows):
        return {}
    start, end = ((times + gaps.shift_ns)[rows] for times in (gaps.server_start_ns, gaps.server_end_ns))
    waits = waits_of(store, tenant, engine_id, int(start.min()) - AROUND_NS, int(end.max()) + AROUND_NS, by_page)
    return dict(zip(rows.tolist(), waits.evidence(start, end), strict=True))


def waits_of(store: Store, tenant: str, engine_id: str, low_ns: int, high_ns: int, by_page: bool = False) -> CpuWaits:
    """Of this engine between these times, by the clock of whoever sampled: the node that it is on. Of several nodes nothing.

    Where nobody sees the engine's processes it is, ``by_page``, the node on which its page was read.
    """
    inside = between_ns("recorded_at", low_ns, high_ns)
    engines = told_under(engine_id)

    def hosts_of(told: str) -> list[str]:
        found = store.select(_HOSTS.format(inside=inside, tenant=quoted(tenant), engines=engines, told=told))
        return [str(unquoted(host)) for (host,) in found]

    hosts = hosts_of(WAITED) or (hosts_of(UP) if by_page else [])
    if len(hosts) != 1:
        return CpuWaits()

    def counted(which: str) -> list[_Counter]:
        return _read(store, _COUNTED.format(inside=inside, tenant=quoted(tenant), which=which))

    waited = counted(f"metric = '{WAITED}' AND engine_id IN ({engines})")
    stolen = f"metric = '{CPU}' AND engine_id IN ('', {engines}) AND host = {quoted(hosts[0])} AND {_STEAL}"
    # The agent tells all CPUs together, a Collector each: where both do, either is all of it.
    return CpuWaits(waited, counted(f"{stolen} AND {OF_ALL_CPUS}") or counted(stolen))


def _read(store: Store, sql: str) -> list[_Counter]:
    """The counters, each whole."""
    table = store.select_arrow(sql)
    series, times = (np.asarray(table[name].to_numpy()) for name in ("series", "at_ns"))
    seconds = np.asarray(table["value"].to_numpy(), np.float64)
    parts = np.split(np.arange(len(series)), np.flatnonzero(np.diff(series)) + 1)
    return [counter for part in parts if (counter := _counter(times[part].astype(np.int64), seconds[part])) is not None]


def _counter(times_ns: Ints, seconds: Floats) -> _Counter | None:
    """``None`` for what is no counter of seconds: nobody waits longer than there are years."""
    if not len(seconds) or not (np.abs(seconds) < _SECONDS_MAX).all():
        return None
    total = grown(seconds)
    return _Counter(times_ns, np.rint(1e9 * total).astype(np.int64)) if total[-1] < _SECONDS_MAX else None
