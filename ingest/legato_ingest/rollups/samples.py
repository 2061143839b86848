"""The 5-minute rollup of node samples, which panels over days read.

Five minutes are dirty if one of their samples was received since the last run. They are computed again completely by one statement inside
the store, because there can be thousands of series. A sample is never replaced or deleted before its retention ends, so no row of the
rollup needs to vanish. After an update from a version without this rollup a worker computes the whole past, a part in each run, so that the
rollups of streams do not wait for it. The module does not store the progress; ``worker`` does.
"""

from __future__ import annotations

import time

import numpy as np

from legato_ingest.rollups.compute import passes, within
from legato_ingest.storage import Store
from legato_ingest.storage.sql import after_until_ms, time_ns

__all__ = ["PERIOD_S", "SampleRollup"]

PERIOD_S = 300
"""The length of a row's period. ``toStartOfFiveMinutes`` and the table's name mean the same."""
# One statement reads about so many samples, at least one period.
_SAMPLES_MAX = 2_000_000
# The last time that a DateTime can hold.
_TIME_MAX_NS = (2**32 - 1) // PERIOD_S * PERIOD_S * 10**9

_DIRTY = """
SELECT intDiv(toUnixTimestamp64Second(recorded_at), {period_s}) * {period_s} AS at, count() AS samples FROM node_samples
WHERE {condition} AND recorded_at < {last}
GROUP BY at"""
# The values of a period in the order of their times. NULL, which only histograms have, is left out.
_VALUES = "arrayMap(each -> each.2, arraySort(each -> each.1, groupArrayIf((recorded_at, assumeNotNull(value)), value IS NOT NULL)))"
_DELTA = "temporality = 'delta' AND count > 0 AND sum IS NOT NULL"
_COMPUTE = """
INSERT INTO node_samples_5min (tenant, metric, engine_id, host, series, minute, rolled_at, attributes, samples, positive, value_sum,
    value_max, first_value, last_value, grown, observations, observed_sum)
SELECT
    tenant, metric, engine_id, host, series, toStartOfFiveMinutes(toDateTime(recorded_at, 'UTC')) AS at,
    fromUnixTimestamp64Milli(toInt64({rolled_ms}), 'UTC'), any(attributes),
    toUInt32(count(value)), toUInt32(countIf(value > 0)), ifNull(sum(value), 0), ifNull(max(value), 0),
    ({values} AS ordered)[1], ordered[-1],
    arraySum((now, before) -> if(now >= before, now - before, now), arrayPopFront(ordered), arrayPopBack(ordered)),
    toUInt64(sumIf(ifNull(count, 0), {delta})), sumIf(ifNull(sum, 0), {delta})
FROM node_samples FINAL
WHERE {within}
GROUP BY tenant, metric, engine_id, host, series, at"""


class SampleRollup:
    """Computes the rollup part by part, and keeps the periods that are left. Not for several threads at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # The number of samples by the start of each period in Unix s.
        self._left: dict[int, int] = {}
        self._until_ms = 0
        self._found_at_s = float("-inf")

    def step(self, since_ms: int, until_ms: int, rolled_ms: int, every_s: float) -> int:
        """Compute the next part. Return the progress: everything received up to this time (Unix ms) is rolled up.

        ``since_ms`` is the progress in the store, ``until_ms`` the watermark, and ``rolled_ms`` the version of the rows. When no part is
        left, dirty periods are looked for ``every_s`` after the last time.
        """
        if not self._left:
            if until_ms <= since_ms or time.monotonic() - self._found_at_s < every_s:
                return since_ms
            self._find(after_until_ms("received_at", since_ms, until_ms))
            self._until_ms, self._found_at_s = until_ms, time.monotonic()
        self.next_part(rolled_ms)
        return since_ms if self._left else max(since_ms, self._until_ms)

    def again(self, since_s: int) -> None:
        """Take note that all periods since this time (Unix s) are to be computed."""
        self._find(f"recorded_at >= toDateTime({since_s}, 'UTC')")

    def next_part(self, rolled_ms: int) -> bool:
        """Compute some of the periods that are left. Return False if none was left."""
        if not self._left:
            return False
        starts_s = np.array(sorted(self._left), np.int64)
        samples = np.cumsum([self._left[start] for start in starts_s.tolist()])
        few = starts_s[: max(1, int(np.searchsorted(samples, _SAMPLES_MAX, "right")))]
        part = next(passes(few))
        sql = _COMPUTE.format(rolled_ms=rolled_ms, values=_VALUES, delta=_DELTA, within=within("recorded_at", part, PERIOD_S))
        self._store.command(sql)
        for start in part.tolist():
            del self._left[start]
        return True

    def _find(self, condition: str) -> None:
        sql = _DIRTY.format(condition=condition, last=time_ns(_TIME_MAX_NS), period_s=PERIOD_S)
        self._left |= {int(start): int(samples) for start, samples in self._store.select(sql)}
