"""The 5-minute rollup of node samples, which panels over days read.

Five minutes are dirty if one of their samples was received since the last run. They are computed again completely by one statement inside
the store, because there can be thousands of series. A sample is never replaced or deleted before its retention ends, so no row of the
rollup needs to vanish. After an update from a version without this rollup a worker computes the whole past, a part in each run, so that the
rollups of streams do not wait for it. The module does not store the progress; ``worker`` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from legato_ingest.errors import StoreError
from legato_ingest.rollups.compute import TIME_MAX, passes, within
from legato_ingest.rollups.pieces import Piece, in_pieces
from legato_ingest.storage import Store
from legato_ingest.storage.sql import after_until_ms

__all__ = ["PERIOD_S", "SampleRollup"]

PERIOD_S = 300
"""The length of a row's period. ``toStartOfFiveMinutes`` and the table's name mean the same."""
# One statement reads about so many samples, or one period.
_SAMPLES_MAX = 2_000_000
# After a failure a part has one period; each part that is computed lets the next be so many times as large.
_GROWTH = 16

_FOUND = """
SELECT intDiv(toUnixTimestamp64Second(recorded_at), {period_s}) * {period_s} AS at, count() AS samples FROM node_samples
WHERE {condition} AND recorded_at < {time_max}
GROUP BY at"""
# The values of a period in the order of their times. NULL, which only histograms have, is left out.
_VALUES = "arrayMap(each -> each.2, arraySort(each -> each.1, groupArrayIf((recorded_at, assumeNotNull(value)), value IS NOT NULL)))"
_DELTA = "temporality = 'delta' AND count > 0 AND sum IS NOT NULL"
# The version must exceed that of the stored rows even if the clock was set back, or was ahead where another process computed them.
_NEWEST = """SELECT toUnixTimestamp64Milli(max(rolled_at)) FROM node_samples_5min WHERE minute BETWEEN {first_s} AND {last_s}"""
_COMPUTE = """
INSERT INTO node_samples_5min (tenant, metric, engine_id, host, series, minute, rolled_at, attributes, samples, positive, value_sum,
    value_max, first_value, last_value, grown, observations, observed_sum) SETTINGS max_partitions_per_insert_block = 0, {settings}
SELECT
    tenant, metric, engine_id, host, series, toStartOfFiveMinutes(toDateTime(recorded_at, 'UTC')) AS at,
    fromUnixTimestamp64Milli(greatest(toInt64({rolled_ms}), 1 + ({newest})), 'UTC'), any(attributes),
    toUInt32(count(value)), toUInt32(countIf(value > 0)), ifNull(sum(value), 0), ifNull(max(value), 0),
    ({values} AS ordered)[1], ordered[-1],
    arraySum((now, before) -> if(now >= before, now - before, now), arrayPopFront(ordered), arrayPopBack(ordered)),
    toUInt64(sumIf(ifNull(count, 0), {delta})), sumIf(ifNull(sum, 0), {delta})
FROM node_samples FINAL
WHERE {within} AND {keys}
GROUP BY tenant, metric, engine_id, host, series, at"""


class SampleRollup:
    """Computes the rollup part by part, and keeps the periods that are left. Not for several threads at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # The number of samples by the start of each period in Unix s.
        self._left: dict[int, int] = {}
        # Everything received up to the first time is rolled up, and up to the second one when no period is left.
        self._done_ms = self._until_ms = 0
        self._found_at_s = float("-inf")
        self._samples_max = _SAMPLES_MAX

    def step(self, since_ms: int, until_ms: int, rolled_ms: int, every_s: float) -> int | None:
        """Compute the next part. Return the progress to store, a time of receipt in Unix ms: everything received before is rolled up.

        None: there is nothing to store. ``since_ms`` is the progress in the store, ``until_ms`` the watermark, and ``rolled_ms`` the
        version of the rows. When no part is left, dirty periods are looked for ``every_s`` after the last time. If a part fails, the next
        run begins with its first period alone, and the parts grow again: panels rely on all periods before the newest one.
        """
        since_ms = max(since_ms, self._done_ms)
        if not self._left:
            if until_ms <= since_ms or time.monotonic() - self._found_at_s < every_s:
                return None
            self._left = self._found(after_until_ms("received_at", since_ms, until_ms))
            self._until_ms, self._found_at_s, self._samples_max = until_ms, time.monotonic(), _SAMPLES_MAX
            if since_ms:
                # A few late samples make periods dirty that have many.
                for part in passes(_sorted(self._left)):
                    self._left |= self._found(within("recorded_at", part, PERIOD_S))
            if not self._left:
                self._done_ms = until_ms
                return None
        try:
            self._compute_part(self._left, rolled_ms)
        except StoreError:
            self._samples_max = 1
            raise
        self._samples_max = min(_GROWTH * self._samples_max, _SAMPLES_MAX)
        if self._left:
            return None
        self._done_ms = self._until_ms
        return self._done_ms

    def again(self, since_s: int, next_rolled_ms: Callable[[], int], is_stopping: Callable[[], bool]) -> None:
        """Compute all periods since this time (Unix s), until ``is_stopping()``."""
        left = self._found(f"recorded_at >= toDateTime({since_s}, 'UTC')")
        while left and not is_stopping():
            self._compute_part(left, next_rolled_ms())

    def _compute_part(self, left: dict[int, int], rolled_ms: int) -> None:
        """Compute the first of these periods, and remove them."""
        starts_s = _sorted(left)
        samples = np.cumsum([left[start] for start in starts_s.tolist()])
        few = starts_s[: max(1, int(np.searchsorted(samples, self._samples_max, "right")))]
        part = next(passes(few))
        in_pieces("node_samples_5min", part, lambda piece: self._compute_piece(piece, rolled_ms))
        for start in part.tolist():
            del left[start]

    def _compute_piece(self, piece: Piece, rolled_ms: int) -> None:
        starts_s = piece.starts_s
        sql = _COMPUTE.format(
            rolled_ms=rolled_ms,
            newest=_NEWEST.format(first_s=int(starts_s[0]), last_s=int(starts_s[-1])),
            values=_VALUES,
            delta=_DELTA,
            within=within("recorded_at", starts_s, PERIOD_S),
            # A series is a hash already, and a range of its values is a range of the primary key.
            keys=piece.keys("series"),
            settings=piece.settings,
        )
        self._store.command(sql)

    def _found(self, condition: str) -> dict[int, int]:
        sql = _FOUND.format(condition=condition, time_max=TIME_MAX, period_s=PERIOD_S)
        return {int(start): int(samples) for start, samples in self._store.select(sql)}


def _sorted(periods: Mapping[int, int]) -> NDArray[np.int64]:
    return np.array(sorted(periods), np.int64)
