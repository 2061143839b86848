"""The 5-minute rollup of node samples, which panels over days read.

Five minutes are dirty if one of their samples was received since the last run. They are computed again completely by one statement inside
the store, because there can be thousands of series. A sample is never replaced or deleted before its retention ends, so no row of the
rollup needs to vanish. After an update from a version without this rollup a worker computes the whole past, a part in each run, so that the
rollups of streams do not wait for it. The module does not store the progress; ``worker`` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from legato_ingest.errors import StoreError
from legato_ingest.rollups.backlog import Progress
from legato_ingest.rollups.compute import TIME_MAX, passes, within
from legato_ingest.rollups.divided import NO_PROGRESS, Divided
from legato_ingest.rollups.pieces import Piece, by_tenant
from legato_ingest.storage import Store
from legato_ingest.storage.sql import after_until_ms

__all__ = ["PERIOD_S", "SampleRollup"]

PERIOD_S = 300
"""The length of a row's period. ``toStartOfFiveMinutes`` and the table's name mean the same."""
_TABLE = "node_samples_5min"
# One statement reads about so many samples, or one period.
_SAMPLES_MAX = 2_000_000
# After a failure a part has one period; each part that is computed lets the next be so many times as large.
_GROWTH = 16

# The start of a sample's period in Unix s.
_START = f"intDiv(toUnixTimestamp64Second(recorded_at), {PERIOD_S}) * {PERIOD_S}"
_FOUND = """
SELECT {start} AS at, count() AS samples FROM node_samples
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
WHERE {rows} AND {keys}
GROUP BY tenant, metric, engine_id, host, series, at"""


class SampleRollup:
    """Computes the rollup part by part, and keeps the periods that are left. Not for several threads at once.

    ``kept_since_s`` returns the time (Unix s) since which all samples are stored; earlier periods are not computed. While
    ``is_stopping()`` nothing is divided.

    What the store refuses of one tenant for its memory is computed behind the periods of the others, in small pieces. The later periods of
    that tenant wait for it: panels rely on all periods of their tenant before the newest one.
    """

    def __init__(self, store: Store, kept_since_s: Callable[[], int], is_stopping: Callable[[], bool]) -> None:
        self._store, self._kept_since_s, self._is_stopping = store, kept_since_s, is_stopping
        # The number of samples by the start of each period in Unix s.
        self._left: dict[int, int] = {}
        # Dirty periods were looked for among what was received after the first time and up to the second one, and those received up to the
        # third one were computed, or are divided (Unix ms).
        self._since_ms = self._until_ms = self._done_ms = 0
        self._found_at_s = float("-inf")
        self._samples_max = _SAMPLES_MAX
        self._divided = Divided(in_order=True)

    def step(self, since_ms: int, until_ms: int, rolled_ms: int, every_s: float) -> None:
        """Compute the next part. ``since_ms``: the progress in the store; ``until_ms``: the watermark; ``rolled_ms``: the rows' version.

        When no part is left, dirty periods are looked for ``every_s`` after the last time. If a part fails, the next run begins with its
        first period alone, and the parts grow again. Raises ``StoreError``.
        """
        if not self._left:
            self._look(max(since_ms, self._until_ms), until_ms, every_s)
        if not self._left:
            return
        try:
            self._compute_part(self._left, self._divided, (self._since_ms, 0), rolled_ms)
        except StoreError:
            self._samples_max = 1
            raise
        self._samples_max = min(_GROWTH * self._samples_max, _SAMPLES_MAX)
        if not self._left:
            self._done_ms = self._until_ms

    def due_in_s(self, stamp_after: Callable[[int], int | None], every_s: float) -> float:
        """Return in how many seconds a part has to be computed or looked for; infinite if nothing was received since the last look.

        ``stamp_after`` returns the time of the first insert later than a time (Unix ms). ``every_s``: as for ``step``.
        """
        if self._left or self._divided or not self._until_ms:
            return 0.0
        return float("inf") if stamp_after(self._until_ms) is None else self._found_at_s + every_s - time.monotonic()

    def step_divided(self, next_rolled_ms: Callable[[], int], is_over: Callable[[], bool]) -> None:
        """Compute pieces of tenants that take much memory, at least one if any waits, until ``is_over()``. Raises ``StoreError``."""
        self._compute_divided(self._divided, next_rolled_ms, is_over)

    def progress_ms(self, since_ms: int) -> int | None:
        """Return the progress to store, a time of receipt in Unix ms: everything received before is rolled up.

        None: nothing was computed that is not in the progress ``since_ms`` of the store.
        """
        progress_ms, _ = self._divided.progress((self._done_ms, 0))
        return progress_ms if progress_ms > since_ms else None

    def again(self, since_s: int, next_rolled_ms: Callable[[], int]) -> Iterator[None]:
        """Compute all periods since this time (Unix s), until ``is_stopping()``; yield after each part. Raises ``StoreError``."""
        left, divided = self._found(f"recorded_at >= toDateTime({since_s}, 'UTC')"), Divided(in_order=True)
        while left and not self._is_stopping():
            self._compute_part(left, divided, NO_PROGRESS, next_rolled_ms())
            yield
        if not self._is_stopping():
            self._compute_divided(divided, next_rolled_ms, self._is_stopping)

    def _look(self, since_ms: int, until_ms: int, every_s: float) -> None:
        """Look for the periods that became dirty in this time of receipt (Unix ms), ``every_s`` after the last time."""
        if until_ms <= since_ms or time.monotonic() - self._found_at_s < every_s:
            return
        left = self._found(after_until_ms("received_at", since_ms, until_ms))
        if since_ms:
            # A few late samples make periods dirty that have many.
            for part in passes(_sorted(left)):
                left |= self._found(within("recorded_at", part, PERIOD_S))
        self._left, self._since_ms, self._until_ms = left, since_ms, until_ms
        self._found_at_s, self._samples_max = time.monotonic(), _SAMPLES_MAX

    def _compute_part(self, left: dict[int, int], divided: Divided, before: Progress, rolled_ms: int) -> None:
        """Compute the first of these periods, and remove them. ``before``: the progress until they were looked for."""
        starts_s = _sorted(left)
        samples = np.cumsum([left[start] for start in starts_s.tolist()])
        few = starts_s[: max(1, int(np.searchsorted(samples, self._samples_max, "right")))]
        part = next(passes(few))

        def run(piece: Piece) -> None:
            self._compute_piece(piece, rolled_ms)

        # Without expired periods: that nothing is computed of them would look as if the store had memory.
        whole = divided.left_out(_TABLE, part, before, self._with_samples).since(self._kept_since_s())
        for piece in by_tenant(whole, run, self._tenants, self._is_stopping) if whole else ():
            # Only periods with samples of the tenant: it does not wait for those of others.
            divided.add(_TABLE, replace(piece, starts_s=self._with_samples(piece)), before)
        for start in part.tolist():
            del left[start]

    def _compute_divided(self, divided: Divided, next_rolled_ms: Callable[[], int], is_over: Callable[[], bool]) -> None:
        for _ in divided.compute(lambda _, piece: self._compute_piece(piece, next_rolled_ms()), is_over):
            pass

    def _compute_piece(self, whole: Piece, rolled_ms: int) -> None:
        piece = whole.since(self._kept_since_s())
        if piece is None:
            return
        starts_s = piece.starts_s
        sql = _COMPUTE.format(
            rolled_ms=rolled_ms,
            newest=_NEWEST.format(first_s=int(starts_s[0]), last_s=int(starts_s[-1])),
            values=_VALUES,
            delta=_DELTA,
            rows=_rows(piece),
            # A series is a hash already, and a range of its values is a range of the primary key.
            keys=piece.keys("series"),
            settings=piece.settings,
        )
        self._store.command(sql)

    def _with_samples(self, piece: Piece) -> NDArray[np.int64]:
        return _sorted(self._found(_rows(piece)))

    def _tenants(self, piece: Piece) -> list[str]:
        """Return the tenants with samples in a piece."""
        return sorted(str(tenant) for (tenant,) in self._store.select(f"SELECT DISTINCT tenant FROM node_samples WHERE {_rows(piece)}"))

    def _found(self, condition: str) -> dict[int, int]:
        sql = _FOUND.format(condition=condition, time_max=TIME_MAX, start=_START)
        return {int(start): int(samples) for start, samples in self._store.select(sql)}


def _rows(piece: Piece) -> str:
    """Return the SQL condition that a sample is in a piece, whatever its series."""
    return f"{within('recorded_at', piece.starts_s, PERIOD_S)} AND {piece.rows(_START)}"


def _sorted(periods: Mapping[int, int]) -> NDArray[np.int64]:
    return np.array(sorted(periods), np.int64)
