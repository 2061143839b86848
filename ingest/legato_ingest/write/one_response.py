"""One row a response: where several emitters recorded the same response at the same vantage, only the richest row counts.

Applications often run two or three instrumentations at once, and a framework's span lies around the client library's. Counting each would
double every figure. ``recordings`` compares rows and decides which wins.

A row of Legato's own emitters is never dropped. A poorer row that arrives later is not stored. A poorer row that the store already holds
gets a newest rev with the outcome `superseded`, which the view `streams` leaves out.

The store is queried only for tenants that have foreign emitters. ``second_look`` finds what two instances on one store insert at the same
moment.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from legato_ingest.definitions import SUPERSEDED_OUTCOME, by_tenant
from legato_ingest.emitters import OWN_PREFIX
from legato_ingest.errors import StoreRefused
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.convert import summary_rows
from legato_ingest.otlp.emitters.foreign import ANY_CHUNK
from legato_ingest.otlp.model import REV_MAX, StreamRecord
from legato_ingest.storage import Store
from legato_ingest.storage.sql import unquoted
from legato_ingest.write.dedup import in_minutes, query_parts, values
from legato_ingest.write.recordings import TRACES_MAX, Recording, losers

__all__ = ["STORED_MAX", "Place", "Resolved", "Responses", "stored_recordings", "superseding"]

# Rows of one response start at most so many minutes apart.
_AROUND = 1
_REFRESH_S = 60.0
# Stored rows that one insert is compared with, and new rows of one insert that are compared with stored ones. Each tenant has its share.
STORED_MAX, _NEW_MAX = 20_000, 20_000
# Stored rows in the minutes of the new ones: those of a thousand streams a second. A tenant with more is not compared, because every
# insert with a row of these minutes would wait for it. They take 0.3 s.
_READ_MAX = 1_000_000
_NONE = bytes(8)
# Columns of bytes that are no text.
_IDS = frozenset(("trace_id", "span_id", "parent_span_id"))
_COLUMNS = (
    "tenant", "trace_id", "span_id", "parent_span_id", "rev", "vantage", "service_name", "model", "response_model", "response_id",
    "emitter",
)  # fmt: skip
# The ids are sent as hexadecimal strings, one for each column: ClickHouse parses these some ten times faster than lists of expressions.
# Of an id in many traces only as many rows are read as show that (``recordings.TRACES_MAX``).
_STORED = f"""
SELECT * EXCEPT (in_trace)
FROM
(
    SELECT *
    FROM
    (
        SELECT
            {", ".join(_COLUMNS)}, toUnixTimestamp64Nano(start_time) AS start_ns, toInt64(duration_ns) AS duration_ns,
            toBool(notEmpty(dt_us)) AS has_chunks, toBool(isNotNull(ttft_us)) AS has_ttft,
            toBool(has(flags, '{ANY_CHUNK}')) AS any_chunk, outcome,
            trace_id IN (SELECT toFixedString(substring(unhex('{{traces}}'), 1 + 16 * number, 16), 16) FROM numbers({{traces_count}}))
                AS in_trace
        FROM stream_revs
        WHERE {{inside}}
            AND
            (
                in_trace
                OR response_id != '' AND response_id IN (SELECT arrayJoin(splitByChar(char(0), unhex('{{responses}}'))))
            )
        ORDER BY rev DESC
        LIMIT 1 BY tenant, trace_id, span_id
    )
    LIMIT {2 * TRACES_MAX} BY tenant, vantage, in_trace, if(in_trace, '', response_id), if(in_trace, span_id, toFixedString('', 8))
)
LIMIT {{share}} BY tenant
SETTINGS max_rows_to_read = {_READ_MAX}"""


@dataclass(slots=True)
class Resolved:
    """The rows to insert for each batch, rows that supersede stored ones, and (loser, winner) of each row that loses."""

    rows: list[pa.Table]
    superseding: pa.Table
    lost: list[tuple[Recording, Recording]]


class Responses:
    """Finds rows of the same response in a group of batches and in the store. Used by the committer's thread only."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store, self._metrics = store, metrics
        self._foreign: set[str] = set()
        self._refreshed_s: float | None = None

    def resolve(self, batches: Sequence[pa.Table]) -> Resolved:
        """Return what is left to insert of the new rows of ``stream_revs`` of each batch. Raises ``StoreUnavailable``."""
        unchanged = Resolved(list(batches), batches[0].slice(0, 0), []) if batches else Resolved([], summary_rows([], ""), [])
        if not any(rows.num_rows for rows in batches):
            return unchanged
        self.foreign_tenants(_REFRESH_S)
        self._foreign.update(_foreign_tenants(pa.concat_tables(batches)))
        new = [each for number, rows in enumerate(batches) for each in _recordings(rows, number, self._foreign)] if self._foreign else []
        if not new:
            return unchanged
        stored = self.stored(_shared(new, _NEW_MAX))
        if len(new) > _NEW_MAX:
            self._metrics.errors.labels("one_response", "too_many_rows").inc()
        winners = {loser.key: winner for loser, winner in losers([*stored, *new])}
        if not winners:
            return unchanged
        # With the earlier revs of the streams that lose, which would be the highest then.
        lost = [(each, winners[each.key]) for each in (*new, *stored) if each.key in winners]
        dropped: list[set[int]] = [set() for _ in batches]
        for batch, row in (loser.place for loser, _ in lost if loser.place is not None):
            dropped[batch].add(row)
        kept = [_without(rows, places) for rows, places in zip(batches, dropped, strict=True)]
        return Resolved(kept, superseding(loser for loser, _ in lost if loser.place is None), lost)

    def stored(self, like: Sequence[Recording | Place]) -> list[Recording]:
        """Return the stored rows that may be of the same responses as these. Raises ``StoreUnavailable``.

        Rows that cannot be compared are stored: a response with two rows does less harm than a request that is never acknowledged.
        """
        return stored_recordings(self._store, like, lambda error: self._metrics.errors.labels("one_response", str(error.code)).inc())

    def foreign_tenants(self, age_s: float = 0.0) -> set[str]:
        """Return the tenants with foreign emitters. What other instances know is read from the store, unless it was ``age_s`` ago."""
        if self._refreshed_s is None or time.monotonic() - self._refreshed_s >= age_s:
            # After a start all that are kept: the other row of a response may have waited in a queue for days.
            since = "" if self._refreshed_s is None else " AND received_at > now() - INTERVAL 1 HOUR"
            found = self._store.select(f"SELECT DISTINCT tenant FROM emitter_spans WHERE result = 'stored'{since}")
            self._refreshed_s = time.monotonic()
            self._foreign |= {str(unquoted(tenant)) for (tenant,) in found}
        return self._foreign


class Place(NamedTuple):
    """Where other rows of the response of a row are."""

    tenant: str
    trace_id: bytes
    start_ns: int
    response_id: str


def stored_recordings(store: Store, like: Sequence[Recording | Place], refused: Callable[[StoreRefused], None]) -> list[Recording]:
    """Return the stored rows that may be of the same responses as these, ``like`` themselves included where they are stored.

    ``refused`` is called for each tenant for which the store refuses this. No row is found of these.
    """
    share = STORED_MAX // max(1, len({each.tenant for each in like})) + 1
    found, of_tenant = dict[tuple[str, bytes, bytes], Recording](), Counter[str]()
    sizes = np.array([len(each.response_id.encode()) for each in like], np.int64)
    for rows in query_parts(sizes) if like else ():
        # A query returns at most so many rows of a tenant, and a tenant with so many is compared with no more.
        part = [each for each in like[rows] if of_tenant[each.tenant] < share]
        stored = _stored(store, part, share, refused) if part else []
        found.update((each.key, each) for each in stored)
        of_tenant.update(each.tenant for each in stored)
    return list(found.values())


def _stored(store: Store, like: Sequence[Recording | Place], share: int, refused: Callable[[StoreRefused], None]) -> list[Recording]:
    """Return the stored rows for one query, or those for each tenant if the store refuses it: one with too many rows costs no other."""
    try:
        return _recordings_of(store.select_arrow(_stored_sql(like, share)))
    except StoreRefused as error:
        own = by_tenant(like)
        if len(own) == 1:
            refused(error)
            return []
    return [found for part in own.values() for found in _stored(store, part, share, refused)]


def _stored_sql(like: Sequence[Recording | Place], share: int) -> str:
    traces = sorted({each.trace_id for each in like})
    tenants = pa.chunked_array([pa.array([each.tenant for each in like], pa.string())])
    return _STORED.format(
        share=share,
        inside=in_minutes("start_time", tenants, np.array([each.start_ns for each in like], np.int64), _AROUND),
        traces=b"".join(traces).hex(),
        traces_count=len(traces),
        responses="\0".join(sorted({each.response_id.replace("\0", "") for each in like})).encode().hex(),
    )


def _recordings_of(rows: pa.Table) -> list[Recording]:
    return [
        Recording(**{name: value if name in _IDS else unquoted(value) for name, value in row.items() if name != "outcome"})
        for row in rows.to_pylist()
        if unquoted(row["outcome"]) != SUPERSEDED_OUTCOME
    ]


def _shared(new: list[Recording], most: int) -> list[Recording]:
    """Return these rows, or the first of each tenant if there are more than ``most``."""
    if len(new) <= most:
        return new
    of_tenant = by_tenant(new)
    out: list[Recording] = []
    for left, own in zip(range(len(of_tenant), 0, -1), sorted(of_tenant.values(), key=len), strict=True):
        out += own[: (most - len(out)) // left]
    return out


def _foreign_tenants(rows: pa.Table) -> list[str]:
    """Return the tenants with rows of foreign emitters; almost free for rows of Legato's own."""
    if not rows.num_rows:
        return []
    foreign = pc.invert(pc.starts_with(rows["emitter"], OWN_PREFIX))
    return pc.unique(rows.filter(foreign)["tenant"]).to_pylist() if pc.any(foreign).as_py() else []


def _recordings(rows: pa.Table, batch: int, tenants: set[str]) -> list[Recording]:
    """Return the new rows of these tenants that can share their response with another row."""
    if not rows.num_rows or not tenants.intersection(pc.unique(rows["tenant"]).to_pylist()):
        return []
    columns = {name: values(rows[name]) for name in _COLUMNS}
    columns["start_ns"] = values(rows["start_time"].cast(pa.int64()))
    columns["duration_ns"] = values(rows["duration_ns"])
    columns["has_chunks"] = values(pc.greater(pc.list_value_length(rows["dt_us"]), 0))
    columns["has_ttft"] = values(pc.is_valid(rows["ttft_us"]))
    columns["any_chunk"] = [ANY_CHUNK in flags for flags in values(rows["flags"])]
    out = (
        Recording(**dict(zip(columns, of_row, strict=True)), place=(batch, row))
        for row, of_row in enumerate(zip(*columns.values(), strict=True))
    )
    return [each for each in out if each.tenant in tenants]


def _without(rows: pa.Table, places: Collection[int]) -> pa.Table:
    if not places:
        return rows
    mask = np.ones(rows.num_rows, np.bool_)
    mask[list(places)] = False
    return rows.filter(pa.array(mask))


def superseding(stored: Iterable[Recording]) -> pa.Table:
    """Return the rows that make stored rows step back: their key with the next rev, without any figure.

    Earlier versions stored a rev that has no next one; of two rows with the same rev the later is valid.
    """
    # One table for all rows of a tenant: a table takes 2 ms, and one row of a few hundred bytes can beat ``STORED_MAX`` others.
    tables = [summary_rows(list(map(_superseding, rows)), tenant) for tenant, rows in by_tenant(stored).items()]
    return pa.concat_tables(tables) if tables else summary_rows([], "")


def _superseding(row: Recording) -> StreamRecord:
    return StreamRecord(
        trace_id=row.trace_id,
        span_id=row.span_id,
        parent_span_id=row.parent_span_id if row.parent_span_id != _NONE else b"",
        start_ns=row.start_ns,
        end_ns=row.start_ns,
        otlp_bytes=0,
        emitter=row.emitter,
        rev=min(row.rev + 1, REV_MAX + 1),
        vantage=row.vantage,
        outcome=SUPERSEDED_OUTCOME,
        service_name=row.service_name,
        model=row.model,
        response_id=row.response_id,
    )
