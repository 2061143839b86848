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
from typing import TypeVar

import pyarrow as pa

from legato_ingest.errors import Overloaded, StoreRefused, StoreUnavailable
from legato_ingest.known import Key, engine_keys, keys_of, known_engine_keys, known_keys
from legato_ingest.metrics import Metrics
from legato_ingest.rows import Batch
from legato_ingest.store import Store

__all__ = ["Committer", "Receipt"]

T = TypeVar("T")
REVS, SOCKETS, STEPS, REQUESTS, REJECTED = "stream_revs", "stream_sockets", "engine_steps", "engine_requests", "rejected"
# What ClickHouse answers to a value that it cannot take: these, and no others, are a row's own fault.
_ROW_CODES = frozenset((6, 26, 27, 38, 41, 43, 53, 69, 70, 72, 117, 131, 153, 321, 349, 407, 436, 441, 646, 675, 691))


@dataclass(slots=True)
class Receipt:
    """What became of a request's spans, now that they are in the store: ``rejected`` of them with ``reasons``."""

    rejected: int = 0
    reasons: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Waiting:
    batch: Batch
    size: int
    future: Future[Receipt]


class Committer:
    """Owns the writing thread. ``queue_bytes_max`` bounds what waits, ``chunks_max`` one insert (a larger batch goes alone)."""

    def __init__(self, store: Store, metrics: Metrics, *, queue_bytes_max: int, chunks_max: int) -> None:
        self._store = store
        self._metrics = metrics
        self._queue_bytes_max = queue_bytes_max
        self._chunks_max = chunks_max
        self._queue: deque[_Waiting] = deque()
        self._queue_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="legato-commit", daemon=True)
        self._thread.start()

    def submit(self, batch: Batch) -> Future[Receipt]:
        """Hand over a request's rows; the future is done when they are in the store. Raises ``Overloaded``, having taken nothing."""
        size = batch.revs.nbytes + batch.steps.nbytes + batch.requests.nbytes + batch.rejected.nbytes
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
        chunks = group[0].batch.chunks
        while self._queue and chunks + self._queue[0].batch.chunks <= self._chunks_max:
            group.append(self._queue.popleft())
            chunks += group[-1].batch.chunks
        return group

    def _commit(self, group: list[_Waiting]) -> None:
        """One insert for the group; every future is done after it, whatever happened."""
        started = time.perf_counter()
        try:
            receipts = self._insert(group)
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

    def _insert(self, group: list[_Waiting]) -> list[Receipt]:
        fresh = self._drop_known(group)
        receipts = [_receipt(waiting.batch) for waiting in group]
        bad = self._insert_bisecting(fresh)
        refused = pa.concat_tables([*(waiting.batch.rejected for waiting in group), *(_refused_row(row, error) for row, error in bad)])
        if bad:
            _tell_refused(group, receipts, {key for row, _ in bad for key in keys_of(row)})
        # A rev that is sent again replaces its own row here: nothing counts these rows.
        self._store.insert(SOCKETS, pa.concat_tables([waiting.batch.sockets for waiting in group]))
        self._insert_engine(group)
        self._store.insert(REJECTED, self._drop_known_rejections(refused))
        self._count_outcome(group, fresh, refused, len(bad))
        return receipts

    def _insert_engine(self, group: list[_Waiting]) -> None:
        """Steps and finished requests that are new. A step's key is its engine, its time and its number; its numbers cannot be refused."""
        for table, number in ((STEPS, "step"), (REQUESTS, "response_id")):
            rows = pa.concat_tables([waiting.batch.steps if table == STEPS else waiting.batch.requests for waiting in group])
            if rows.num_rows:
                keys = engine_keys(rows, number)
                fresh = _unseen(rows, keys, known_engine_keys(self._store, table, rows, number))
                self._store.insert(table, fresh)
                self._metrics.engine_rows.labels(table, "stored").inc(fresh.num_rows)
                self._metrics.engine_rows.labels(table, "duplicate").inc(rows.num_rows - fresh.num_rows)

    def _drop_known(self, group: list[_Waiting]) -> list[pa.Table]:
        """Each batch's rows that neither the store nor an earlier place of the group has."""
        keys = [keys_of(waiting.batch.revs) for waiting in group]
        seen = known_keys(self._store, [waiting.batch.revs for waiting in group])
        fresh = []
        for waiting, own in zip(group, keys, strict=True):
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

    def _insert_bisecting(self, tables: list[pa.Table]) -> list[tuple[pa.Table, StoreRefused]]:
        """Insert all; where the store refuses, halve until the row that it refuses stands alone. Returns those rows."""
        rows = pa.concat_tables(tables)
        bad: list[tuple[pa.Table, StoreRefused]] = []
        spans = [(0, rows.num_rows)]
        while spans:
            start, count = spans.pop()
            try:
                self._store.insert(REVS, rows.slice(start, count))
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
        return bad

    def _count_outcome(self, group: list[_Waiting], fresh: list[pa.Table], refused: pa.Table, store_refused: int) -> None:
        metrics = self._metrics
        stored = sum(table.num_rows for table in fresh)
        offered = sum(waiting.batch.revs.num_rows for waiting in group)
        metrics.stored_spans.inc(stored - store_refused)
        metrics.stored_chunks.inc(sum(waiting.batch.chunks for waiting in group) if stored == offered else _chunks_in(fresh))
        metrics.duplicate_spans.inc(offered - stored)
        for reason in refused["reason"].to_pylist():
            metrics.rejected_spans.labels(reason).inc()


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


def _tell_refused(group: list[_Waiting], receipts: list[Receipt], bad: set[Key]) -> None:
    """Everyone who sent a row that the store refuses hears of it, also the sender of a copy that was never tried."""
    for waiting, receipt in zip(group, receipts, strict=True):
        count = sum(key in bad for key in keys_of(waiting.batch.revs))
        if count:
            receipt.rejected += count
            receipt.reasons.append("store_refused")


def _refused_row(row: pa.Table, error: StoreRefused) -> pa.Table:
    """A row of `rejected` for a row that the store refuses. Its hash is of the row's key: the span itself is gone by now."""
    (key,) = keys_of(row)
    columns = {
        "tenant": row["tenant"],
        "received_at": row["received_at"],
        "reason": pa.array(["store_refused"]),
        "detail": pa.array([f"ClickHouse error {error.code}"]),
        "service_name": row["service_name"],
        "emitter": row["emitter"],
        "trace_id": row["trace_id"],
        "span_id": row["span_id"],
        "rev": row["rev"],
        "start_time": row["start_time"],
        "otlp_bytes": row["otlp_bytes"],
        "span_sha256": pa.array([_hash(key)], pa.binary(32)),
    }
    return pa.table(columns)


def _hash(key: Key) -> bytes:
    return hashlib.sha256(repr(key).encode()).digest()
