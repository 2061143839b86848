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

from legato_ingest.literals import between_ns, quoted, unquoted
from legato_ingest.store import Store

__all__ = ["CpuWaits", "waits_of"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_WAITED, _CPU = "legato.process.run_queue.wait_time", "system.cpu.time"
# Samples further apart say too little of a stall between them.
_APART_NS_MAX = 10_000_000_000
# By series, as a counter of one process or CPU may begin anew while the others go on.
_COUNTED = """
SELECT host, series, toUnixTimestamp64Nano(recorded_at) AS at_ns, value
FROM node_samples FINAL
WHERE {inside} AND tenant = {tenant} AND {which} AND value IS NOT NULL
ORDER BY series, at_ns
SETTINGS max_threads = 1"""


@dataclass(frozen=True, slots=True)
class _Total:
    """A counter over time, ascending: ns since the first sample."""

    times_ns: Ints
    total_ns: Floats

    def around(self, start_ns: Ints, end_ns: Ints) -> tuple[Bools, Ints, Ints]:
        """Of each stretch: whether samples surround it closely, by how much the counter grew between those two, and how far apart they
        are.
        """
        if len(self.times_ns) < 2:
            nothing = np.zeros(len(start_ns), np.int64)
            return nothing > 0, nothing, nothing
        before = np.searchsorted(self.times_ns, start_ns, "right") - 1
        after = np.searchsorted(self.times_ns, end_ns, "left")
        low, high = np.maximum(before, 0), np.minimum(after, len(self.times_ns) - 1)
        apart = self.times_ns[high] - self.times_ns[low]
        known = (before >= 0) & (after < len(self.times_ns)) & (apart - (end_ns - start_ns) < _APART_NS_MAX)
        return known, np.rint(self.total_ns[high] - self.total_ns[low]).astype(np.int64), apart


@dataclass(frozen=True, slots=True)
class CpuWaits:
    """What the kernel counted where an engine runs: how long its threads waited for a CPU, and how long CPUs were stolen."""

    waited: _Total
    stolen: _Total

    @classmethod
    def unknown(cls) -> CpuWaits:
        """Nobody sampled anything."""
        nothing = _Total(np.zeros(0, np.int64), np.zeros(0))
        return cls(nothing, nothing)

    def evidence(self, start_ns: Ints, end_ns: Ints) -> list[dict[str, int]]:
        """Of each stretch by the clock of the engine's records, what was counted around it (µs), and for how long that was."""
        out: list[dict[str, int]] = [{} for _ in start_ns]
        for name, total in (("cpu_wait", self.waited), ("cpu_stolen", self.stolen)):
            known, grown, apart = total.around(start_ns, end_ns)
            for row in np.flatnonzero(known):
                out[row] |= {f"{name}_us": round(grown[row] / 1000), f"{name}_of_us": round(apart[row] / 1000)}
        return out


def waits_of(store: Store, tenant: str, engine_id: str, low_ns: int, high_ns: int) -> CpuWaits:
    """Of this engine between these times, by the clock of whoever sampled: the node that it is on. Of several nodes nothing."""
    inside = between_ns("recorded_at", low_ns, high_ns)
    # Ranks behind one server share its processes.
    engines = ", ".join(map(quoted, sorted({engine_id, engine_id.split("/")[0]})))
    which = f"metric = '{_WAITED}' AND engine_id IN ({engines})"
    hosts, waited = _read(store, _COUNTED.format(inside=inside, tenant=quoted(tenant), which=which))
    if len(hosts) != 1:
        return CpuWaits.unknown()
    which = f"metric = '{_CPU}' AND engine_id IN ('', {engines}) AND host = {quoted(hosts.pop())} AND attributes['cpu.mode'] = 'steal'"
    return CpuWaits(waited, _read(store, _COUNTED.format(inside=inside, tenant=quoted(tenant), which=which))[1])


def _read(store: Store, sql: str) -> tuple[set[str], _Total]:
    """The hosts that the rows are of, and their sum."""
    table = store.select_arrow(sql)
    series, times = (np.asarray(table[name].to_numpy()) for name in ("series", "at_ns"))
    values = np.asarray(table["value"].to_numpy(), np.float64)
    hosts = {str(unquoted(host)) for host in table["host"].unique().to_pylist()}
    return hosts, _sum_of(np.split(np.arange(len(series)), np.flatnonzero(np.diff(series)) + 1), times.astype(np.int64), values)


def _sum_of(parts: Sequence[Ints], times_ns: Ints, seconds: Floats) -> _Total:
    """All series added up at the moments of any, each going on from where it was when its counter began anew."""
    moments = np.unique(times_ns)
    total = np.zeros(len(moments))
    for part in parts:
        if len(part):
            grown = np.cumsum(np.maximum(np.diff(seconds[part], prepend=seconds[part][:1]), 0.0))
            total += 1e9 * np.interp(moments, times_ns[part], grown)
    return _Total(moments, total)
