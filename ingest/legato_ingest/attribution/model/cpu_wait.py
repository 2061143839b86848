"""How long an engine's threads waited for a CPU around a stall, and how much CPU time was stolen from its host.

The kernel counts both, so the growth between the samples that surround a stall is a fact. It is additional evidence: a step that took
longer than its work explains is charged to the host with or without it, because a stopped process waits in no run queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.counters import grown
from legato_ingest.attribution.model.gaps import Gaps
from legato_ingest.attribution.model.scraped import AROUND_NS
from legato_ingest.attribution.model.verdicts import Verdicts
from legato_ingest.causes import index_of

__all__ = ["CpuSamples", "CpuSeries", "cpu_waits_around", "cpu_waits_of"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_HOST = index_of("host")
# A smaller part of a gap is not worth evidence.
_PART_MIN = 0.05
# Samples with a longer distance than this, beyond the length of the stall, say too little about it.
_DISTANCE_NS_MAX = 10_000_000_000
# Larger values are no seconds: 1e9 s are 32 years.
_SECONDS_MAX = 1e9


@dataclass(frozen=True, slots=True)
class CpuSeries:
    """The samples of one counter of seconds on one host, in order of time. ``is_total``: of all CPUs together, not of a single one."""

    host: str
    times_ns: Ints
    seconds: Floats
    is_total: bool = True

    def within(self, low_ns: int, high_ns: int) -> CpuSeries | None:
        """Return the samples between two times, both included; ``None`` without any."""
        low, high = np.searchsorted(self.times_ns, low_ns, "left"), np.searchsorted(self.times_ns, high_ns, "right")
        if high <= low:
            return None
        return CpuSeries(self.host, self.times_ns[low:high], self.seconds[low:high], self.is_total)

    def growth(self, start_ns: Ints, end_ns: Ints) -> tuple[Bools, Ints, Ints]:
        """Return for each stretch whether two samples surround it closely, the growth between them, and their distance (ns).

        A series with a value that is no number of seconds is known nowhere.
        """
        nothing = np.zeros(len(start_ns), np.int64)
        if not len(self.seconds) or not (np.abs(self.seconds) < _SECONDS_MAX).all():
            return nothing > 0, nothing, nothing
        total = grown(self.seconds)
        if total[-1] >= _SECONDS_MAX:
            return nothing > 0, nothing, nothing
        total_ns = np.rint(1e9 * total).astype(np.int64)
        before = np.searchsorted(self.times_ns, start_ns, "right") - 1
        after = np.searchsorted(self.times_ns, end_ns, "left")
        low, high = np.maximum(before, 0), np.minimum(after, len(self.times_ns) - 1)
        distance = self.times_ns[high] - self.times_ns[low]
        known = (before >= 0) & (after < len(self.times_ns)) & (distance - (end_ns - start_ns) < _DISTANCE_NS_MAX)
        return known, total_ns[high] - total_ns[low], distance


@dataclass(frozen=True, slots=True)
class CpuSamples:
    """What was sampled on the hosts of one engine.

    ``waits``: the waits of the engine's threads, a series a process. ``stolen``: stolen CPU time. ``scrapes``: the times of the scrapes of
    the engine, a series a host, where they are to identify the host of an engine without sampled processes.
    """

    waits: Sequence[CpuSeries] = ()
    stolen: Sequence[CpuSeries] = ()
    scrapes: Sequence[CpuSeries] = ()

    def on_one_host(self, low_ns: int, high_ns: int) -> CpuSamples:
        """Return the samples between two times on the engine's host. If several hosts have an engine with this id, return none."""
        waits = _within(self.waits, low_ns, high_ns)
        hosts = {series.host for series in waits} or {series.host for series in _within(self.scrapes, low_ns, high_ns)}
        if len(hosts) != 1:
            return CpuSamples()
        stolen = [series for series in _within(self.stolen, low_ns, high_ns) if series.host in hosts]
        # The agent samples all CPUs together, a Collector each CPU. If both do, either is the complete time.
        return CpuSamples(waits, [series for series in stolen if series.is_total] or stolen)


def cpu_waits_of(samples: CpuSamples, gaps: Gaps, verdicts: Verdicts, rows: Ints) -> dict[int, dict[str, int]]:
    """Return, by index, the evidence for those of the gaps ``rows`` of one engine that have a considerable part of the host."""
    rows = rows[verdicts.parts[rows, _HOST] >= _PART_MIN * gaps.length_ns[rows]]
    if not len(rows):
        return {}
    start, end = ((times + gaps.clock_offset_ns)[rows] for times in (gaps.server_start_ns, gaps.server_end_ns))
    near = samples.on_one_host(int(start.min()) - AROUND_NS, int(end.max()) + AROUND_NS)
    return dict(zip(rows.tolist(), cpu_waits_around(near, start, end), strict=True))


def cpu_waits_around(samples: CpuSamples, start_ns: Ints, end_ns: Ints) -> list[dict[str, int]]:
    """Return what was counted around each stretch, by the clock of the engine's records: the time (µs), and the length it was counted over.

    The times of all processes, and of all CPUs, are added up.
    """
    out: list[dict[str, int]] = [{} for _ in start_ns]
    for name, several in (("cpu_wait", samples.waits), ("cpu_stolen", samples.stolen)):
        for series in several:
            known, counted, distance = series.growth(start_ns, end_ns)
            for row in np.flatnonzero(known):
                each = out[row]
                each[f"{name}_us"] = each.get(f"{name}_us", 0) + round(counted[row] / 1000)
                each[f"{name}_of_us"] = max(each.get(f"{name}_of_us", 0), round(distance[row] / 1000))
    return out


def _within(several: Sequence[CpuSeries], low_ns: int, high_ns: int) -> list[CpuSeries]:
    return [near for series in several if (near := series.within(low_ns, high_ns)) is not None]
