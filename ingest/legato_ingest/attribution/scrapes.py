"""What an engine's counters rule out, where its steps were not recorded but its metrics were scraped.

One idea: a counter that did not move for a minute before and after a gap rules out what it counts; one that did says nothing of this
stream. The minute is for clocks that disagree, and for vLLM, which counts a preemption when its victim resumes. So scrapes never name a
cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.evidence import Stream
from legato_ingest.literals import between_ns, quoted, quoted_all, unquoted
from legato_ingest.store import Store

__all__ = ["Counter", "RULED_OUT", "counters_of", "still"]

Ints = NDArray[np.int64]
_AROUND_NS = 60_000_000_000
# Two scrapes further apart than this say nothing of what was between them.
_APART_NS_MAX = 30_000_000_000
# What a counter that stands still rules out, and why.
RULED_OUT = {
    "vllm:num_preemptions_total": ("kv_pressure", "its engine counted no preemption from a minute before to a minute after"),
    "vllm:prompt_tokens_total": ("scheduling", "its engine counted no prompt from a minute before to a minute after"),
}
_COUNTERS = """
SELECT tenant, engine_id, metric, toUnixTimestamp64Nano(recorded_at) AS at_ns, sum(value) AS total
FROM node_samples FINAL
WHERE {inside} AND engine_id IN ({engines}) AND metric IN ({metrics}) AND value IS NOT NULL
GROUP BY tenant, engine_id, metric, recorded_at
ORDER BY recorded_at
SETTINGS max_threads = 1"""


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter of one engine by the scraper's clock, ascending in time; series of one scrape added up."""

    times_ns: Ints
    values: NDArray[np.float64]


def counters_of(store: Store, streams: Sequence[Stream]) -> dict[tuple[str, str, str], Counter]:
    """The counters of these streams' engines around them, by tenant, engine and metric; of engines that are known."""
    engines = sorted({stream.engine_id for stream in streams if stream.engine_id})
    if not engines:
        return {}
    starts, ends = [stream.start_ns for stream in streams], [_end(stream) for stream in streams]
    inside = between_ns("recorded_at", min(starts) - 2 * _AROUND_NS, max(ends) + 2 * _AROUND_NS)
    names = quoted_all(RULED_OUT)
    table = store.select_arrow(_COUNTERS.format(inside=inside, engines=", ".join(map(quoted, engines)), metrics=names))
    keys = [
        (unquoted(tenant), unquoted(engine), unquoted(metric))
        for tenant, engine, metric in zip(*(table[name].to_pylist() for name in ("tenant", "engine_id", "metric")), strict=True)
    ]
    times, totals = table["at_ns"].to_numpy().astype(np.int64), table["total"].to_numpy().astype(np.float64)
    rows: dict[tuple[str, str, str], list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    return {key: Counter(times[own], totals[own]) for key, own in rows.items()}


def still(counter: Counter, start_ns: Ints, end_ns: Ints) -> NDArray[np.bool_]:
    """Whether the counter stood still from a minute before each gap to a minute after, with scrapes all the while."""
    times = counter.times_ns
    if len(times) < 2:
        return np.zeros(len(start_ns), np.bool_)
    moved = np.concatenate([[0], np.cumsum((np.diff(counter.values) != 0) | (np.diff(times) > _APART_NS_MAX))])
    before = np.searchsorted(times, start_ns - _AROUND_NS, "right") - 1
    after = np.searchsorted(times, end_ns + _AROUND_NS, "left")
    covered = (before >= 0) & (after < len(times))
    low, high = np.maximum(before, 0), np.minimum(after, len(times) - 1)
    return np.asarray(covered & (moved[high] == moved[low]))


def _end(stream: Stream) -> int:
    return int(stream.client.times_ns[-1]) if len(stream.client.times_ns) else stream.start_ns
