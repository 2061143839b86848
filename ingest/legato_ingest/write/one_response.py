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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from legato_ingest.definitions import SUPERSEDED_OUTCOME
from legato_ingest.emitters import OWN_PREFIX
from legato_ingest.errors import StoreRefused
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.convert import summary_rows
from legato_ingest.otlp.emitters.foreign import ANY_CHUNK
from legato_ingest.otlp.model import StreamRecord
from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, quoted_all, unquoted
from legato_ingest.write.dedup import minute_ranges, values
from legato_ingest.write.recordings import TRACES_MAX, Recording, losers

__all__ = ["STORED_MAX", "Place", "Resolved", "Responses", "stored_recordings", "superseding"]

_AROUND_NS = 60_000_000_000
_REFRESH_S = 60.0
# Stored rows that one insert is compared with, and new rows of one insert that are compared with stored ones. Each tenant has its share.
STORED_MAX, _NEW_MAX = 20_000, 20_000
_NONE = bytes(8)
# Columns of bytes that are no text.
_IDS = frozenset(("trace_id", "span_id", "parent_span_id"))
_COLUMNS = (
    "tenant", "trace_id", "span_id", "parent_span_id", "rev", "vantage", "service_name", "model", "response_id", "emitter",
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
        WHERE tenant IN ({{tenants}}) AND {{inside}}
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
LIMIT {{share}} BY tenant"""


@dataclass(slots=True)
class Resolved:
    """The rows to insert for each batch, rows that supersede stored ones, and (loser, winner) of each response with several rows."""

    rows: list[pa.Table]
    superseding: pa.Table
    lost: list[tuple[Recording, Recording]]


class Responses:
    """Finds rows of the same response in a group of batches and in the store. Used by the committer's thread only."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store, self._metrics = store, metrics
        self._foreign: set[str] = set()
        self._refreshed_s = -_REFRESH_S

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
        try:
            compared = _shared(new, _NEW_MAX)
            known = {each.key for each in compared}
            stored = [each for each in stored_recordings(self._store, compared) if each.key not in known]
        except StoreRefused as error:
            # Rows that cannot be compared are stored: a response with two rows does less harm than a request that is never acknowledged.
            self._metrics.errors.labels("one_response", str(error.code)).inc()
            stored = []
        if len(new) > _NEW_MAX:
            self._metrics.errors.labels("one_response", "too_many_rows").inc()
        lost = losers([*new, *stored])
        if not lost:
            return unchanged
        dropped = {loser.place for loser, _ in lost}
        kept = [_without(rows, [row for batch, row in filter(None, dropped) if batch == number]) for number, rows in enumerate(batches)]
        return Resolved(kept, superseding(loser for loser, _ in lost if loser.place is None), lost)

    def foreign_tenants(self, age_s: float = 0.0) -> set[str]:
        """Return the tenants with foreign emitters. What other instances know is read from the store, unless it was ``age_s`` ago."""
        if time.monotonic() - self._refreshed_s >= age_s:
            self._refreshed_s = time.monotonic()
            found = self._store.select(
                "SELECT DISTINCT tenant FROM emitter_spans WHERE result = 'stored' AND received_at > now() - INTERVAL 1 HOUR"
            )
            self._foreign |= {str(unquoted(tenant)) for (tenant,) in found}
        return self._foreign


class Place(NamedTuple):
    """Where other rows of the response of a row are."""

    tenant: str
    trace_id: bytes
    start_ns: int
    response_id: str


def stored_recordings(store: Store, like: Sequence[Recording | Place]) -> list[Recording]:
    """Return the stored rows that may be of the same responses as these, ``like`` themselves included where they are stored."""
    starts = np.array([each.start_ns for each in like], np.int64)
    traces, tenants = sorted({each.trace_id for each in like}), sorted({each.tenant for each in like})
    found = []
    # Stretches of time, so that one late row does not widen the range for all rows.
    for low_ns, high_ns in minute_ranges(starts):
        sql = _STORED.format(
            tenants=quoted_all(tenants),
            share=STORED_MAX // max(1, len(tenants)) + 1,
            inside=between_ns("start_time", low_ns - _AROUND_NS, high_ns + _AROUND_NS),
            traces=b"".join(traces).hex(),
            traces_count=len(traces),
            responses="\0".join(sorted({each.response_id.replace("\0", "") for each in like})).encode().hex(),
        )
        found += store.select_arrow(sql).to_pylist()
    rows = (
        Recording(**{name: value if name in _IDS else unquoted(value) for name, value in row.items() if name != "outcome"})
        for row in found
        if unquoted(row["outcome"]) != SUPERSEDED_OUTCOME
    )
    return list({each.key: each for each in rows}.values())


def _shared(new: list[Recording], most: int) -> list[Recording]:
    """Return these rows, or the first of each tenant if there are more than ``most``."""
    if len(new) <= most:
        return new
    of_tenant: dict[str, list[Recording]] = {}
    for each in new:
        of_tenant.setdefault(each.tenant, []).append(each)
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


def _without(rows: pa.Table, places: Sequence[int]) -> pa.Table:
    if not places:
        return rows
    mask = np.ones(rows.num_rows, np.bool_)
    mask[list(places)] = False
    return rows.filter(pa.array(mask))


def superseding(stored: Iterable[Recording]) -> pa.Table:
    """Return the rows that make stored rows step back: their key with the next rev, without any figure."""
    rows = [
        summary_rows(
            [
                StreamRecord(
                    trace_id=each.trace_id,
                    span_id=each.span_id,
                    parent_span_id=each.parent_span_id if each.parent_span_id != _NONE else b"",
                    start_ns=each.start_ns,
                    end_ns=each.start_ns,
                    otlp_bytes=0,
                    emitter=each.emitter,
                    rev=each.rev + 1,
                    vantage=each.vantage,
                    outcome=SUPERSEDED_OUTCOME,
                    service_name=each.service_name,
                    model=each.model,
                    response_id=each.response_id,
                )
            ],
            each.tenant,
        )
        for each in stored
    ]
    return pa.concat_tables(rows) if rows else summary_rows([], "")
