"""Insert of the batches of several requests as one group: new rows only, and the receipt of each request.

Rows that the store already holds are left out, so a retry changes nothing. A row that the store refuses is found by halving the insert and
becomes a row of ``rejected``. Everything runs in the committer's thread.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from legato_ingest.errors import LegatoError, StoreRefused, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.objectives import Objective
from legato_ingest.otlp.batch import Batch, rejected_row
from legato_ingest.storage import Store
from legato_ingest.write.dedup import TIMED_TABLES, TimedTable, new_rows, stored_streams, stream_keys
from legato_ingest.write.one_response import Resolved, Responses, superseding
from legato_ingest.write.recent_keys import RecentRows
from legato_ingest.write.rejections import new_rejections
from legato_ingest.write.second_look import SecondLook
from legato_ingest.write.sender_counts import SenderCounts
from legato_ingest.write.slo_counters import count_results

__all__ = ["GroupInsert", "Receipt", "receipt_of", "with_received_at"]

REVS, SOCKETS, REJECTED, EMITTER_SPANS = "stream_revs", "stream_sockets", "rejected", "emitter_spans"
# Steps, finished requests and samples are compared and inserted in slices: a key takes some hundred bytes while it is compared.
_SLICE_ROWS = 65_536
# ClickHouse's codes for a value that it cannot store. Only these are the fault of a row.
_ROW_CODES = frozenset((6, 26, 27, 38, 41, 43, 53, 69, 70, 72, 117, 131, 153, 321, 349, 407, 436, 441, 646, 675, 691))
# Its codes for a column, a function, a table, a database, a setting, a user or a right that is missing. No request is at fault.
_SETUP_CODES = frozenset((10, 16, 46, 47, 60, 81, 115, 164, 192, 193, 497, 516))


@dataclass(slots=True)
class Receipt:
    """The result of a request that is stored: the number of ``rejected`` spans or points, and the ``reasons``."""

    rejected: int = 0
    reasons: list[str] = field(default_factory=list)

    def add(self, more: Receipt) -> None:
        """Add the result for a further part of the request."""
        self.rejected += more.rejected
        self.reasons += [reason for reason in more.reasons if reason not in self.reasons]


def with_received_at(rows: pa.Table, received_ms: int) -> pa.Table:
    """Return the rows with their receive time, in ms since the epoch. The converters leave it null."""
    place = rows.schema.get_field_index("received_at")
    column = rows.schema.field(place)
    times = pa.array(np.full(rows.num_rows, received_ms, np.int64)).cast(column.type)
    return rows.set_column(place, column, times)


class GroupInsert:
    """Inserts groups of batches. ``objectives``: those by which streams that ended are counted. ``look_again_s``: see ``SecondLook``;
    None: no other process writes into the store.
    """

    def __init__(self, store: Store, metrics: Metrics, objectives: Sequence[Objective], look_again_s: float | None = None) -> None:
        self._store, self._metrics = store, metrics
        self.objectives = objectives
        self._responses, self._senders = Responses(store, metrics), SenderCounts()
        self._second_look = SecondLook(self._responses, look_again_s)
        self._recent = RecentRows(store, is_sole=look_again_s is None)

    def insert(self, batches: Sequence[Batch], received_ms: int) -> list[Receipt]:
        """Insert the rows of all batches with this receive time, and return a receipt for each batch.

        Raises ``StoreUnavailable`` when the store cannot take them now; any other error is the fault of a batch. Then some of them may be
        stored; a retry finds those as duplicates.
        """
        try:
            return self._insert(batches, received_ms)
        except StoreRefused as error:
            if error.code in _SETUP_CODES:
                raise StoreUnavailable(f"ClickHouse error {error.code} on a query", error.code) from error
            raise

    def _insert(self, batches: Sequence[Batch], received_ms: int) -> list[Receipt]:
        receipts = [receipt_of(batch) for batch in batches]
        resolved, refused = self._insert_streams(batches, receipts, received_ms)
        new = resolved.rows
        # These rows are not deduplicated: a rev that is sent again replaces its own row, and no query counts the rows.
        self._store.insert(SOCKETS, pa.concat_tables([batch.sockets for batch in batches]))
        rejected = [*refused, *self._insert_timed(batches, receipts, received_ms)]
        bad = pa.concat_tables([*(batch.rejected for batch in batches), *rejected])
        self._store.insert(REJECTED, with_received_at(new_rejections(self._store, bad), received_ms))
        self._count_outcome(batches, new, len(refused), sum(loser.place is not None for loser, _ in resolved.lost))
        self._senders.add_same(resolved.lost)
        for batch in batches:
            for (_, _, scope, _, _, reason), spans in batch.senders.items() if batch.spans else ():
                self._metrics.count_ignored(reason, scope, spans)
            self._senders.add_ignored(batch.senders)
        self._senders.add_stored(pa.concat_tables(new))
        return receipts

    def due_in_s(self) -> float | None:
        """Return in how many seconds something is to be written that no request waits for; None without any."""
        return min((due_s for due_s in (self._senders.due_in_s(), self._second_look.due_in_s()) if due_s is not None), default=None)

    def postpone(self) -> None:
        """Write it later: the store does not answer."""
        self._senders.postpone()
        self._second_look.postpone()

    def write_waiting(self, received_ms: int, *, all_now: bool = False) -> None:
        """Write what no request waits for: all of it, or what is due."""
        for due_s, write in ((self._second_look.due_in_s(), self._look_again), (self._senders.due_in_s(), self._write_senders)):
            if due_s is not None and (all_now or not due_s):
                write(received_ms)

    def _look_again(self, received_ms: int) -> None:
        """Supersede rows of responses of which another instance has inserted a richer row at the same moment."""
        try:
            lost = self._second_look.lost()
            if lost:
                self._store.insert(REVS, with_received_at(superseding(loser for loser, _ in lost), received_ms))
        except StoreUnavailable as error:
            self._metrics.errors.labels("one_response", type(error).__name__).inc()
            self._second_look.postpone()
            return
        except StoreRefused as error:
            self._metrics.errors.labels("one_response", str(error.code)).inc()
            lost = []
        self._senders.add_same(self._second_look.counted(lost))
        self._second_look.forget()

    def _write_senders(self, received_ms: int) -> None:
        """Write the numbers of foreign spans. Those that cannot be written are lost and counted as an error."""
        try:
            self._store.insert(EMITTER_SPANS, with_received_at(self._senders.taken(), received_ms))
        except LegatoError as error:
            self._metrics.errors.labels("emitter_spans", type(error).__name__).inc()

    def _insert_streams(self, batches: Sequence[Batch], receipts: Sequence[Receipt], received_ms: int) -> tuple[Resolved, list[pa.Table]]:
        """Insert the new rows of `stream_revs`. Return them, and the rows of `rejected` for those that the store refused."""
        resolved = self._responses.resolve(self._new_streams(batches))
        bad = self._insert_halving(REVS, with_received_at(_joined([*resolved.rows, resolved.superseding]), received_ms))
        self._second_look.add(resolved.rows)
        if bad:
            _add_refused(receipts, [stream_keys(batch.revs) for batch in batches], {key for row, _ in bad for key in stream_keys(row)})
        return resolved, [_refused(row, stream_keys(row), error) for row, error in bad]

    def _new_streams(self, batches: Sequence[Batch]) -> list[pa.Table]:
        """Return the rows of each batch that neither the store nor an earlier batch of the group holds."""
        parts = [batch.revs for batch in batches]
        rows = _joined(parts)
        keys = stream_keys(rows)
        seen = stored_streams(self._store, [self._recent.maybe_stored(REVS, "start_time", rows, [key[:3] for key in keys])])
        if not seen and len(set(keys)) == len(keys):
            return parts
        # A rev below the highest stored one counts as stored: the store may have merged it away since it was first sent.
        highest: dict[tuple[str, bytes, bytes], int] = {}
        for tenant, trace, span, rev in seen:
            highest[tenant, trace, span] = max(rev, highest.get((tenant, trace, span), 0))
        new = []
        for part in parts:
            own = stream_keys(part)
            seen.update(key for key in own if key[3] <= highest.get(key[:3], -1))
            new.append(new_rows(part, own, seen))
        return new

    def _insert_timed(self, batches: Sequence[Batch], receipts: Sequence[Receipt], received_ms: int) -> list[pa.Table]:
        """Insert new steps, finished requests and samples; return the rows of `rejected` for those that the store refused."""
        refused = []
        for table in TIMED_TABLES:
            parts = [getattr(batch, table.rows) for batch in batches]
            rows = _joined(parts)
            slices = (rows.slice(first, _SLICE_ROWS) for first in range(0, rows.num_rows, _SLICE_ROWS))
            bad = [each for part in slices for each in self._insert_slice(table, part, received_ms)]
            if bad:
                _add_refused(receipts, map(table.keys, parts), {key for row, _ in bad for key in table.keys(row)})
                refused += [_refused(row, table.keys(row), error) for row, error in bad]
        return refused

    def _insert_slice(self, table: TimedTable, rows: pa.Table, received_ms: int) -> list[tuple[pa.Table, StoreRefused]]:
        """Insert those of some rows that are new; return the rows that the store refused, with their errors."""
        keys = table.keys(rows)
        stored = table.stored(self._store, self._recent.maybe_stored(table.table, "recorded_at", rows, keys))
        new = with_received_at(new_rows(rows, keys, stored), received_ms)
        bad = self._insert_halving(table.table, new)
        self._metrics.count_stored(table.table, new.num_rows - len(bad), rows.num_rows - new.num_rows, len(bad))
        return bad

    def _insert_halving(self, table: str, rows: pa.Table) -> list[tuple[pa.Table, StoreRefused]]:
        """Insert all rows. Where the store refuses some, halve them until it refuses a single row; return these rows with their errors."""
        bad: list[tuple[pa.Table, StoreRefused]] = []
        ranges = [(0, rows.num_rows)]
        while ranges:
            start, count = ranges.pop()
            try:
                self._store.insert(table, rows.slice(start, count))
            except StoreRefused as error:
                self._metrics.errors.labels("insert", str(error.code)).inc()
                if error.code not in _ROW_CODES:
                    # Not the fault of a row (a missing table, a wrong column): rejecting rows would acknowledge their loss.
                    raise StoreUnavailable(f"ClickHouse error {error.code} on an insert", error.code) from error
                if count == 1:
                    bad.append((rows.slice(start, 1), error))
                else:
                    half = count // 2
                    ranges += [(start + half, count - half), (start, half)]
            else:
                if table == REVS:
                    # Counted at once: if a later step of the group fails, these rows are duplicates when they are sent again.
                    stored = rows.slice(start, count)
                    self._metrics.count_results(count_results(stored, self.objectives))
                    self._metrics.stream_histograms.observe(stored)
        return bad

    def _count_outcome(self, batches: Sequence[Batch], new: Sequence[pa.Table], refused: int, same_response: int) -> None:
        metrics = self._metrics
        stored = sum(table.num_rows for table in new)
        offered = sum(batch.revs.num_rows for batch in batches)
        metrics.stored_spans.inc(stored - refused)
        metrics.stored_chunks.inc(sum(batch.chunks for batch in batches) if stored == offered else _chunks_in(new))
        metrics.duplicate_spans.inc(offered - stored - same_response)
        metrics.count_ignored("same response", "", same_response)
        metrics.rejected_spans.labels("store_refused").inc(refused)
        for batch in batches:
            if batch.logs:
                metrics.log_records.labels("rejected").inc(batch.rejected_items)
                continue
            rejected = metrics.rejected_points if batch.points else metrics.rejected_spans
            for reason, number in (Counter(batch.rejected["reason"].to_pylist()) + batch.unlisted).items():
                rejected.labels(reason).inc(number)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all tables in one piece: every function costs as much for each piece as for many rows."""
    return pa.concat_tables([table for table in tables if table.num_rows] or tables[:1]).combine_chunks()


def receipt_of(batch: Batch) -> Receipt:
    """Return the receipt of a batch as it was converted."""
    return Receipt(batch.rejected_items, sorted({*batch.rejected["reason"].to_pylist(), *batch.unlisted}))


def _add_refused(receipts: Sequence[Receipt], sent: Iterable[list[Any]], bad: set[Any]) -> None:
    """Add the refused rows to the receipt of every request that sent one, including requests with a copy that was not inserted."""
    for receipt, keys in zip(receipts, sent, strict=True):
        count = sum(key in bad for key in keys)
        if count:
            receipt.rejected += count
            receipt.reasons.append("store_refused")


def _refused(row: pa.Table, keys: Sequence[Any], error: StoreRefused) -> pa.Table:
    """Return the row of `rejected` for a row that the store refused. It is identified by a hash of the row's key."""
    return rejected_row(row, f"ClickHouse error {error.code}", hashlib.sha256(repr(keys[0]).encode()).digest())


def _chunks_in(tables: Sequence[pa.Table]) -> int:
    return sum(len(table["dt_us"].combine_chunks().flatten()) for table in tables if table.num_rows)
