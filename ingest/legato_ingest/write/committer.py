"""Group commit: rows of many requests into the store, each request answered by its own rows' fate.

One idea: one thread writes. Whatever waits when it becomes free goes into one insert, so that the cost of a synced insert is shared by
all who arrived meanwhile, and nobody waits for a timer. Rows that the store has already are dropped first, so a retry changes nothing.
It decodes nothing, and it knows HTTP only by the errors it raises.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from legato_ingest.definitions import SLO_FIRST_OUTPUT_MS, SLO_GAP_MS
from legato_ingest.errors import Overloaded, StoreRefused, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.spans import Rejection
from legato_ingest.otlp.stream_rows import Batch, rejected_table
from legato_ingest.storage import Store
from legato_ingest.storage.watermark import Watermark
from legato_ingest.write.dedup import BESIDE, keys_of, known_keys
from legato_ingest.write.slo_counters import results_of

__all__ = ["Committer", "Receipt"]

T = TypeVar("T")
REVS, SOCKETS, REJECTED = "stream_revs", "stream_sockets", "rejected"
# What a row of any table tells of itself in `rejected`.
_SAID = ("tenant", "metric", "trace_id", "span_id", "rev", "service_name", "emitter", "otlp_bytes")
# What ClickHouse answers to a value that it cannot take: these, and no others, are a row's own fault.
_ROW_CODES = frozenset((6, 26, 27, 38, 41, 43, 53, 69, 70, 72, 117, 131, 153, 321, 349, 407, 436, 441, 646, 675, 691))


@dataclass(slots=True)
class Receipt:
    """What became of a request's spans or points, now that they are in the store: ``rejected`` of them with ``reasons``."""

    rejected: int = 0
    reasons: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Waiting:
    batch: Batch
    size: int
    future: Future[Receipt]


class Committer:
    """Owns the writing thread. ``queue_bytes_max`` bounds what waits, ``chunks_max`` one insert (a larger batch goes alone).

    Rows get the time of their insert as ``received_at``, later than ``after_ms`` and all that ``settled_ms`` ever said. Streams that ended
    are counted by the SLO with these limits.
    """

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        *,
        queue_bytes_max: int,
        chunks_max: int,
        after_ms: int = 0,
        slo_gap_ms: float = SLO_GAP_MS,
        slo_first_output_ms: float = SLO_FIRST_OUTPUT_MS,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._queue_bytes_max = queue_bytes_max
        metrics.queue_bytes_max.set(queue_bytes_max)
        self._chunks_max = chunks_max
        self._slo_us = int(slo_gap_ms * 1000), int(slo_first_output_ms * 1000)
        self._queue: deque[_Waiting] = deque()
        self._queue_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._stamps = Watermark(after_ms, store.clock_ms)
        self._thread = threading.Thread(target=self._run, name="legato-commit", daemon=True)
        self._thread.start()

    def submit(self, batch: Batch) -> Future[Receipt]:
        """Hand over a request's rows; the future is done when they are in the store. Raises ``Overloaded``, having taken nothing."""
        size = batch.nbytes
        with self._changed:
            if self._closing:
                raise StoreUnavailable("the server is stopping")
            if self._queue and self._queue_bytes + size > self._queue_bytes_max:
                raise Overloaded(f"{self._queue_bytes} bytes wait for the store already")
            waiting = _Waiting(batch, size, Future())
            self._queue.append(waiting)
            self._count(size)
            self._changed.notify()
        return waiting.future

    def close(self) -> None:
        """Commit what waits, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def settled_ms(self) -> int:
        """All rows that were received until this are in the store: whoever follows ``received_at`` so far misses none."""
        return self._stamps.reached_ms()

    def _count(self, size: int) -> None:
        self._queue_bytes += size
        self._metrics.queue_bytes.set(self._queue_bytes)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                group = self._take()
            self._commit(group)
            with self._changed:
                self._count(-sum(waiting.size for waiting in group))

    def _take(self) -> list[_Waiting]:
        group = [self._queue.popleft()]
        weight = group[0].batch.weight
        while self._queue and weight + self._queue[0].batch.weight <= self._chunks_max:
            group.append(self._queue.popleft())
            weight += group[-1].batch.weight
        return group

    def _commit(self, group: list[_Waiting]) -> None:
        """One insert for the group; every future is done after it, whatever happened."""
        started = time.perf_counter()
        try:
            with self._stamps.stamp() as stamp_ms:
                receipts = self._insert(group, stamp_ms)
        except Exception as error:
            self._metrics.errors.labels("commit", type(error).__name__).inc()
            if not isinstance(error, StoreUnavailable):
                error = StoreUnavailable(f"{type(error).__name__} while committing")
            for waiting in group:
                if waiting.future.set_running_or_notify_cancel():
                    waiting.future.set_exception(error)
            return
        self._metrics.commit_seconds.observe(time.perf_counter() - started)
        for waiting, receipt in zip(group, receipts, strict=True):
            if waiting.future.set_running_or_notify_cancel():
                waiting.future.set_result(receipt)

    def _insert(self, group: list[_Waiting], stamp_ms: int) -> list[Receipt]:
        fresh = self._drop_known(group)
        receipts = [_receipt(waiting.batch) for waiting in group]
        bad = self._insert_bisecting(REVS, _received(pa.concat_tables(fresh), stamp_ms))
        if bad:
            _tell_refused(receipts, [keys_of(waiting.batch.revs) for waiting in group], {key for row, _ in bad for key in keys_of(row)})
        # A rev that is sent again replaces its own row here: nothing counts these rows.
        self._store.insert(SOCKETS, pa.concat_tables([waiting.batch.sockets for waiting in group]))
        beside = self._insert_beside(group, receipts, stamp_ms)
        refused = [*(_refused_row(row, keys_of(row), error) for row, error in bad), *beside]
        rejected = pa.concat_tables([*(waiting.batch.rejected for waiting in group), *refused])
        self._store.insert(REJECTED, self._drop_known_rejections(rejected))
        self._count_outcome(group, fresh, len(bad))
        return receipts

    def _insert_beside(self, group: list[_Waiting], receipts: list[Receipt], stamp_ms: int) -> list[pa.Table]:
        """Steps, finished requests and samples that are new; the rows of `rejected` for those that the store refuses."""
        refused = []
        for identity in BESIDE:
            parts = [getattr(waiting.batch, identity.rows) for waiting in group]
            rows = pa.concat_tables(parts)
            if not rows.num_rows:
                continue
            fresh = _received(_unseen(rows, identity.keys(rows), identity.known(self._store, rows)), stamp_ms)
            bad = self._insert_bisecting(identity.table, fresh)
            if bad:
                _tell_refused(receipts, map(identity.keys, parts), {key for row, _ in bad for key in identity.keys(row)})
                refused += [_refused_row(row, identity.keys(row), error) for row, error in bad]
            self._metrics.count_stored(identity.table, fresh.num_rows - len(bad), rows.num_rows - fresh.num_rows, len(bad))
        return refused

    def _drop_known(self, group: list[_Waiting]) -> list[pa.Table]:
        """Each batch's rows that neither the store nor an earlier place of the group has."""
        seen = known_keys(self._store, [waiting.batch.revs for waiting in group])
        # A rev behind the newest that the store has is no news: the store may have merged the older one away since it was first sent.
        newest: dict[tuple[str, bytes, bytes], int] = {}
        for tenant, trace, span, rev in seen:
            newest[tenant, trace, span] = max(rev, newest.get((tenant, trace, span), 0))
        fresh = []
        for waiting in group:
            own = keys_of(waiting.batch.revs)
            seen.update(key for key in own if key[3] <= newest.get(key[:3], -1))
            fresh.append(_unseen(waiting.batch.revs, own, seen))
        return fresh

    def _drop_known_rejections(self, refused: pa.Table) -> pa.Table:
        """The rejections that are new: a request that is sent again has the same bad spans."""
        if not refused.num_rows:
            return refused
        hashes = [value.hex() for value in refused["span_sha256"].to_pylist()]
        listed = ",".join(f"'{value}'" for value in set(hashes))
        seen = {
            (str(sha256), str(reason))
            for sha256, reason in self._store.select(
                f"SELECT lower(hex(span_sha256)), reason FROM rejected WHERE lower(hex(span_sha256)) IN ({listed})"
                " SETTINGS max_query_size = 1000000000"
            )
        }
        return _unseen(refused, zip(hashes, refused["reason"].to_pylist(), strict=True), seen)

    def _insert_bisecting(self, table: str, rows: pa.Table) -> list[tuple[pa.Table, StoreRefused]]:
        """Insert all; where the store refuses, halve until the row that it refuses stands alone. Returns those rows."""
        bad: list[tuple[pa.Table, StoreRefused]] = []
        spans = [(0, rows.num_rows)]
        while spans:
            start, count = spans.pop()
            try:
                self._store.insert(table, rows.slice(start, count))
            except StoreRefused as error:
                self._metrics.errors.labels("insert", str(error.code)).inc()
                if error.code not in _ROW_CODES:
                    # Not the rows' fault (a table that is gone, a wrong column): to blame them would acknowledge their loss.
                    raise StoreUnavailable(f"ClickHouse error {error.code} on an insert", error.code) from error
                if count == 1:
                    bad.append((rows.slice(start, 1), error))
                else:
                    half = count // 2
                    spans += [(start + half, count - half), (start, half)]
            else:
                if table == REVS:
                    # Now, not when all is done: if something fails yet, these rows come again as duplicates.
                    self._metrics.count_results(results_of(rows.slice(start, count), *self._slo_us))
        return bad

    def _count_outcome(self, group: list[_Waiting], fresh: list[pa.Table], store_refused: int) -> None:
        metrics = self._metrics
        stored = sum(table.num_rows for table in fresh)
        offered = sum(waiting.batch.revs.num_rows for waiting in group)
        metrics.stored_spans.inc(stored - store_refused)
        metrics.stored_chunks.inc(sum(waiting.batch.chunks for waiting in group) if stored == offered else _chunks_in(fresh))
        metrics.duplicate_spans.inc(offered - stored)
        metrics.rejected_spans.labels("store_refused").inc(store_refused)
        for waiting in group:
            rejected = metrics.rejected_points if waiting.batch.points else metrics.rejected_spans
            for reason in waiting.batch.rejected["reason"].to_pylist():
                rejected.labels(reason).inc()


def _received(rows: pa.Table, stamp_ms: int) -> pa.Table:
    """The rows with the time of their insert: when they were read from the network says nothing about when they can be seen."""
    place = rows.schema.get_field_index("received_at")
    times = pa.array(np.full(rows.num_rows, stamp_ms, np.int64)).cast(rows.schema.field(place).type)
    return rows.set_column(place, rows.schema.field(place), times)


def _unseen(rows: pa.Table, keys: Iterable[T], seen: set[T]) -> pa.Table:
    """The rows whose keys are not in ``seen`` yet; their keys are put in."""
    mask = []
    for key in keys:
        mask.append(key not in seen)
        seen.add(key)
    return rows if all(mask) else rows.filter(pa.array(mask, pa.bool_()))


def _chunks_in(tables: list[pa.Table]) -> int:
    return sum(len(table["dt_us"].combine_chunks().flatten()) for table in tables if table.num_rows)


def _receipt(batch: Batch) -> Receipt:
    return Receipt(batch.rejected.num_rows, sorted(set(batch.rejected["reason"].to_pylist())))


def _tell_refused(receipts: list[Receipt], sent: Iterable[list[Any]], bad: set[Any]) -> None:
    """Everyone who sent a row that the store refuses hears of it, also the sender of a copy that was never tried."""
    for receipt, keys in zip(receipts, sent, strict=True):
        count = sum(key in bad for key in keys)
        if count:
            receipt.rejected += count
            receipt.reasons.append("store_refused")


def _refused_row(row: pa.Table, keys: list[Any], error: StoreRefused) -> pa.Table:
    """A row of `rejected` for a row that the store refuses. Its hash is of the row's key: what was sent is gone by now."""
    said = {name: row[name][0].as_py() for name in _SAID if name in row.column_names}
    time = row["start_time" if "trace_id" in said else "recorded_at"]
    rejection = Rejection(
        reason="store_refused",
        detail=f"metric {said['metric'][:256]!r}: ClickHouse error {error.code}" if "metric" in said else f"ClickHouse error {error.code}",
        trace_id=said.get("trace_id", b""),
        span_id=said.get("span_id", b""),
        rev=said.get("rev", 0),
        start_ns=time.cast(pa.int64())[0].as_py(),
        service_name=said.get("service_name", ""),
        emitter=said.get("emitter", ""),
        otlp_bytes=said.get("otlp_bytes", 0),
        span_sha256=hashlib.sha256(repr(keys[0]).encode()).digest(),
    )
    return rejected_table([rejection], said["tenant"], row["received_at"].cast(pa.int64())[0].as_py() * 1_000_000)
