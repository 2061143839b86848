"""The result of converting one OTLP request: rows by table, rejected items, and the limits that a request must keep.

All converters of the room use these types, and the committer receives them. The module converts nothing itself.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

import pyarrow as pa

from legato_ingest.columns import (
    ENGINE_REQUESTS,
    ENGINE_STEPS,
    NODE_SAMPLES,
    REJECTED,
    STREAM_REVS,
    STREAM_SILENCES,
    STREAM_SOCKETS,
    Column,
    Source,
    Table,
)

__all__ = [
    "DAY_NS",
    "Batch",
    "Builders",
    "Limits",
    "Rejection",
    "build_table",
    "bytes_of",
    "record_column",
    "rejected_row",
    "rejected_table",
]

DAY_NS = 86_400_000_000_000
# A function for each source of a table's columns, which returns the values of one column.
Builders = Mapping[Source, Callable[[Column], pa.Array]]
# Bytes that one chunk takes in a row, by which samples are weighed against chunks.
_CHUNK_BYTES = 16
# A table of more pieces of fewer bytes each is copied into one: a small piece takes more memory than its rows, and each use of a table
# walks over the pieces of each column.
_PIECES_MAX, _PIECE_BYTES_MIN = 8, 64 * 1024
# Columns of any table that a row of `rejected` is made from.
_KEPT = ("tenant", "metric", "trace_id", "span_id", "rev", "service_name", "emitter", "otlp_bytes")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on one request. ``retention_days`` is 0 where rows are kept for ever; then no time is out of range.

    ``days_max`` limits the days with rows in one table, ``row_bytes_max`` the memory of rows beyond some times their items; for most bodies
    it is less (``budget``). ``chunks_per_pass_max`` is the number of chunks, or engine steps, that are decoded at once.
    """

    chunks_per_request_max: int = 8_388_608
    chunks_per_pass_max: int = 131_072
    row_bytes_max: int = 128 * 2**20
    days_max: int = 8
    retention_days: int = 90
    future_max_s: int = 86_400


@dataclass(slots=True)
class Rejection:
    """A span or data point that is not stored, and why. ``detail`` names keys and types, never a value.

    A data point has no ids: its ``trace_id`` and ``span_id`` are empty and ``rev`` is 0. ``span_sha256`` identifies the item, so that a
    retry is the same row.
    """

    reason: str
    detail: str
    otlp_bytes: int
    span_sha256: bytes
    trace_id: bytes = b""
    span_id: bytes = b""
    rev: int = 0
    start_ns: int = 0
    service_name: str = ""
    emitter: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one request by table, all with the columns of ``legato_ingest.columns``; without arguments, those of an empty request.

    A request holds ``spans``, ``points`` or ``logs``. ``ignored`` of them are acknowledged and not stored: spans that are neither streamed
    responses nor engine steps, points flagged as having no value, and log records. ``senders`` counts ignored spans and log records by
    tenant and by who sent them (``spans.Sender``). ``chunks`` counts chunks and engine steps. ``unlisted`` counts rejected items without a
    row in ``rejected``, by reason. ``days`` holds table and day of the rows. ``size_bytes``: the memory of the rows, where it was measured.
    """

    revs: pa.Table = field(default_factory=lambda: STREAM_REVS.empty)
    sockets: pa.Table = field(default_factory=lambda: STREAM_SOCKETS.empty)
    silences: pa.Table = field(default_factory=lambda: STREAM_SILENCES.empty)
    steps: pa.Table = field(default_factory=lambda: ENGINE_STEPS.empty)
    requests: pa.Table = field(default_factory=lambda: ENGINE_REQUESTS.empty)
    samples: pa.Table = field(default_factory=lambda: NODE_SAMPLES.empty)
    rejected: pa.Table = field(default_factory=lambda: REJECTED.empty)
    spans: int = 0
    points: int = 0
    logs: int = 0
    ignored: int = 0
    senders: Counter[tuple[str, ...]] = field(default_factory=Counter)
    chunks: int = 0
    unlisted: Counter[str] = field(default_factory=Counter)
    days: frozenset[tuple[str, int]] = frozenset()
    size_bytes: int = 0

    @classmethod
    def joined(cls, parts: Iterable[Batch]) -> Batch:
        """Return one batch with the rows and counts of all parts, in their order; an empty batch without parts."""
        parts = list(parts)
        if len(parts) == 1:
            return parts[0]
        parts = [cls(), *parts]
        return cls(*(_added([getattr(part, each.name) for part in parts]) for each in fields(cls)))

    def measured(self) -> Batch:
        """Return the batch with the memory of its rows measured: it takes long for many pieces, and an event loop needs it."""
        if self.size_bytes:
            return self
        # `Table.nbytes` takes 40 times as long, because it counts the used part of each slice. No table is a slice here.
        return replace(self, size_bytes=sum(table.get_total_buffer_size() for table in self.tables if table.num_rows))

    @property
    def rejected_items(self) -> int:
        """The number of rejected spans, points or log records, with and without a row."""
        return int(self.rejected.num_rows) + self.unlisted.total()

    @property
    def accepted(self) -> tuple[pa.Table, ...]:
        """The rows of all tables but ``rejected``."""
        return self.revs, self.sockets, self.silences, self.steps, self.requests, self.samples

    @property
    def tables(self) -> tuple[pa.Table, ...]:
        """The rows of all tables."""
        return *self.accepted, self.rejected

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the rows and the names of senders take."""
        names = sum(sys.getsizeof(name) for sender in self.senders for name in sender)
        return names + (self.size_bytes or self._row_bytes())

    @property
    def weight(self) -> int:
        """The batch's share of an insert, in chunks. A stream weighs one more than its chunks; samples as chunks of the same bytes."""
        return self.chunks + int(self.revs.num_rows) + (int(self.samples.nbytes) // _CHUNK_BYTES if self.points else 0)

    def _row_bytes(self) -> int:
        return bytes_of(self.tables)


def bytes_of(tables: Iterable[pa.Table]) -> int:
    """Return the bytes of memory that the rows of some tables take."""
    # `Table.nbytes` is slow and adds nothing for an empty table. A table may be a slice here, and its buffers hold more than its rows.
    return int(sum(table.nbytes for table in tables if table.num_rows))


def _added(values: Sequence[Any]) -> Any:
    """Return the rows, counts or sets of several batches as one."""
    if isinstance(values[0], pa.Table):
        # An empty table would remain as an empty piece of each column.
        rows = pa.concat_tables([each for each in values if each.num_rows] or values[:1])
        pieces = rows.column(0).num_chunks
        return rows.combine_chunks() if pieces > _PIECES_MAX and rows.nbytes < pieces * _PIECE_BYTES_MIN else rows
    if isinstance(values[0], Counter):
        # The sum of counters copies what was added before, for each of them.
        total = Counter[Any]()
        for each in values:
            total.update(each)
        return total
    return frozenset().union(*values) if isinstance(values[0], frozenset) else sum(values[1:], values[0])


def build_table(table: Table, rows: int, tenant: str, sources: Builders) -> pa.Table:
    """Build rows of a declared table. The tenant is the same in all rows, and columns that the committer sets are null."""
    builders: Builders = {
        Source.TENANT: lambda column: pa.repeat(pa.scalar(tenant, column.type), rows),
        Source.COMMITTER: lambda column: pa.nulls(rows, column.type),
        **sources,
    }
    return pa.Table.from_arrays([builders[column.source](column) for column in table.columns], schema=table.schema)


def record_column(column: Column, records: Sequence[Any]) -> pa.Array:
    """Return the values of a column that is a field of records."""
    return pa.array(list(map(attrgetter(column.key), records)), column.type)


def rejected_table(rejections: Sequence[Rejection], tenant: str) -> pa.Table:
    """Build the rows of ``rejected``."""
    if not rejections:
        return REJECTED.empty

    def values(column: Column) -> pa.Array:
        if column.key in ("trace_id", "span_id"):
            width = column.type.byte_width
            return pa.array([getattr(each, column.key)[:width].ljust(width, b"\0") for each in rejections], column.type)
        return record_column(column, rejections)

    return build_table(REJECTED, len(rejections), tenant, {Source.RECORD: values})


def rejected_row(row: pa.Table, detail: str, sha256: bytes) -> pa.Table:
    """Build the row of ``rejected`` for one converted row that the store refused, from what that row holds.

    ``start_time`` is the row's ``start_time`` for a stream, else its ``recorded_at``; a metric's name stands before ``detail``. Fields that
    the row's table lacks are empty or 0.
    """
    (found,) = row.select([name for name in _KEPT if name in row.column_names]).to_pylist()
    (start_ns,) = row["start_time" if "trace_id" in found else "recorded_at"].cast(pa.int64()).to_pylist()
    rejection = Rejection(
        reason="store_refused",
        detail=f"metric {found['metric'][:256]!r}: {detail}" if "metric" in found else detail,
        trace_id=found.get("trace_id", b""),
        span_id=found.get("span_id", b""),
        rev=found.get("rev", 0),
        start_ns=start_ns,
        service_name=found.get("service_name", ""),
        emitter=found.get("emitter", ""),
        otlp_bytes=found.get("otlp_bytes", 0),
        span_sha256=sha256,
    )
    return rejected_table([rejection], found["tenant"])
