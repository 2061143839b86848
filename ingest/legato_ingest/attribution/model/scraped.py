"""What was scraped of an engine's metrics and sampled on its host, around some streams.

`load.scraped_metrics` fills these types. `metric_exclusion` draws the conclusions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "AROUND_NS",
    "CPU_TIME",
    "CPU_WAIT",
    "PREEMPTIONS",
    "PROMPT_TOKENS",
    "SCRAPE_DISTANCE_NS_MAX",
    "STOLEN",
    "EngineKey",
    "MetricCounter",
    "ScrapedMetrics",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
EngineKey = tuple[str, str]
"""Tenant and engine id."""

AROUND_NS = 60_000_000_000
"""How long before and after a gap observations are considered at most."""
SCRAPE_DISTANCE_NS_MAX = 30_000_000_000
"""Two scrapes with a longer distance give no information about the time between them."""
# On one clock: a prompt is counted when its last part is computed, so at most this long after the gap.
_AFTER_NS = 3_000_000_000
PROMPT_TOKENS, PREEMPTIONS = "legato.engine.tokens.prompt", "legato.engine.preemptions"
CPU_WAIT = "legato.process.run_queue.wait_time"
"""How long the engine's threads were ready to run without a CPU, counted by the kernel."""
STOLEN, CPU_TIME = "stolen", "system.cpu.time"
"""The stolen time of all CPUs of the host, and their time in all modes."""


@dataclass(frozen=True, slots=True)
class MetricCounter:
    """One counter of one engine in order of time, by the clock of the scrapes: the growth of all its series since the first sample."""

    times_ns: Ints
    values: Floats


@dataclass(frozen=True, slots=True)
class ScrapedMetrics:
    """What was scraped of one engine.

    ``counters``: by metric. ``scraped_ns``: the times of the scrapes. ``interval_at_ns``, ``interval_ns_max``: the scrapes with times
    between tokens, and the upper bound of the longest of them. ``has_intervals``: the engine exposes these times at all. ``boots``: the
    hosts and boots where it was scraped. ``has_ranks``: the metrics of several ranks behind one server are added up here.
    """

    counters: Mapping[str, MetricCounter]
    scraped_ns: Ints
    interval_at_ns: Ints
    interval_ns_max: Ints
    has_intervals: bool
    boots: frozenset[str] = frozenset()
    has_ranks: bool = False

    def around_ns(self, same_clock: Bools) -> tuple[Ints, Ints]:
        """Return how long before and after each gap a metric must be considered.

        That is two scrapes and some seconds if the scrapes have the server's clock, else a minute.
        """
        distance = int(np.median(np.diff(self.scraped_ns))) if len(self.scraped_ns) > 1 else AROUND_NS
        near = min(2 * distance, AROUND_NS)
        return np.where(same_clock, near, AROUND_NS), np.where(same_clock, min(near + _AFTER_NS, AROUND_NS), AROUND_NS)
