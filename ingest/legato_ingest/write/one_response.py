"""One row a response: where several emitters recorded the same response at the same vantage, only the richest row counts.

Applications often run two or three instrumentations at once, and a framework's span lies around the client library's. Counting each would
double every figure. Two rows are of the same response if they are of one vantage and one service, overlap in time, and share the response's
id. Where one has no id, they are if one is the parent of the other, or if a row of Legato's covers the same time in the same trace.

A row of Legato's own emitters is never dropped: it wins over others, then a row with chunks, then one with TTFT, then one with the TTFT of
content. A poorer row that arrives later is not stored. A poorer row that the store already holds gets a newest rev with the outcome
`superseded`, which the view `streams` leaves out.

The comparison is pure; only ``Responses`` and ``stored_recordings`` query the store, and only for tenants that have foreign emitters.
``second_look`` finds what two instances on one store insert at the same moment.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
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
from legato_ingest.write.dedup import minute_ranges

__all__ = ["STORED_MAX", "Place", "Recording", "Resolved", "Responses", "losers", "stored_recordings", "superseding"]

_AROUND_NS = 60_000_000_000
# Start and end of two recordings of one response without an id: Legato's, and another library's in the same process.
_ALIKE_NS = 250_000_000
_REFRESH_S = 60.0
# A row is compared with so many others at most: a request could hold thousands of rows with one id.
_COMPARED_MAX = 16
# Stored rows that one insert is compared with, and new rows of one insert that are compared with stored ones.
STORED_MAX, _NEW_MAX = 20_000, 20_000
_NONE = bytes(8)
# Columns of bytes that are no text.
_IDS = frozenset(("trace_id", "span_id", "parent_span_id"))
_COLUMNS = (
    "tenant", "trace_id", "span_id", "parent_span_id", "rev", "vantage", "service_name", "model", "response_id", "emitter",
)  # fmt: skip
# The ids are sent as hexadecimal strings, one for each column: ClickHouse parses these some ten times faster than lists of expressions.
_STORED = f"""
SELECT
    {", ".join(_COLUMNS)}, toUnixTimestamp64Nano(start_time) AS start_ns, toInt64(duration_ns) AS duration_ns,
    toBool(notEmpty(dt_us)) AS has_chunks, toBool(isNotNull(ttft_us)) AS has_ttft,
    toBool(has(flags, '{ANY_CHUNK}')) AS any_chunk, outcome
FROM stream_revs
WHERE tenant IN ({{tenants}}) AND {{inside}}
    AND
    (
        trace_id IN (SELECT toFixedString(substring(unhex('{{traces}}'), 1 + 16 * number, 16), 16) FROM numbers({{traces_count}}))
        OR response_id != '' AND response_id IN (SELECT arrayJoin(splitByChar(char(0), unhex('{{responses}}'))))
    )
ORDER BY rev DESC
LIMIT 1 BY tenant, trace_id, span_id
LIMIT {STORED_MAX}
SETTINGS max_query_size = 1000000000, max_threads = 1"""


_Key = tuple[str, bytes, bytes]


@dataclass(frozen=True, slots=True)
class Recording:
    """What decides between rows of one response. ``place``: (batch, row) of a new row; None for a stored one."""

    tenant: str
    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes
    rev: int
    vantage: str
    service_name: str
    model: str
    response_id: str
    emitter: str
    start_ns: int
    duration_ns: int
    has_chunks: bool
    has_ttft: bool
    any_chunk: bool
    place: tuple[int, int] | None = None

    @property
    def is_own(self) -> bool:
        """Whether one of Legato's own emitters made the row."""
        return self.emitter.startswith(OWN_PREFIX)

    @property
    def key(self) -> _Key:
        """What identifies the row's stream."""
        return self.tenant, self.trace_id, self.span_id

    @property
    def end_ns(self) -> int:
        """End of the stream, ns since the epoch."""
        return self.start_ns + self.duration_ns

    def rank(self) -> tuple[bool, bool, bool, bool, bool, int, bytes]:
        """The order in which rows of one response win. Among equals the stored row wins, so that a retry changes nothing."""
        return self.is_own, self.has_chunks, self.has_ttft, not self.any_chunk, self.place is None, -self.start_ns, self.span_id


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
        self._foreign |= {tenant for rows in batches for tenant in _foreign_tenants(rows)}
        new = [each for number, rows in enumerate(batches) for each in _recordings(rows, number, self._foreign)]
        if not new:
            return unchanged
        try:
            known = {each.key for each in new[:_NEW_MAX]}
            stored = [each for each in stored_recordings(self._store, new[:_NEW_MAX]) if each.key not in known]
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
    traces = sorted({each.trace_id for each in like})
    found = []
    # Stretches of time, so that one late row does not widen the range for all rows.
    for low_ns, high_ns in minute_ranges(starts):
        sql = _STORED.format(
            tenants=quoted_all(sorted({each.tenant for each in like})),
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


def losers(recordings: Iterable[Recording]) -> list[tuple[Recording, Recording]]:
    """Return (loser, winner) for each foreign row of a response that has a richer row. No winner is itself a loser."""
    ordered = sorted(recordings, key=Recording.rank, reverse=True)
    richer: dict[_Key, list[Recording]] = defaultdict(list)
    for loser, winner in (*_with_equal_ids(ordered), *_with_parents(ordered), *_at_equal_times(ordered)):
        if not loser.is_own and _is_same(loser, winner):
            richer[loser.key].append(winner)
    lost: dict[_Key, tuple[Recording, Recording]] = {}
    # The richest first, so that each possible winner is decided before its losers.
    for loser in ordered:
        for winner in richer.get(loser.key, ()):
            final = lost[winner.key][1] if winner.key in lost else winner
            if final is winner or (final.key != loser.key and not _contradict(final, loser)):
                lost[loser.key] = loser, final
                break
    return list(lost.values())


def _with_equal_ids(ordered: Sequence[Recording]) -> Iterator[tuple[Recording, Recording]]:
    """Yield pairs of rows with the same response id, the poorer one first. Each row is compared with a few of the richest only."""
    groups: dict[tuple[str, str, str], list[Recording]] = defaultdict(list)
    for each in ordered:
        if each.response_id:
            group = groups[each.tenant, each.vantage, each.response_id]
            yield from ((each, richer) for richer in group)
            if len(group) < _COMPARED_MAX:
                group.append(each)


def _with_parents(ordered: Sequence[Recording]) -> Iterator[tuple[Recording, Recording]]:
    """Yield pairs of a row and its parent, the poorer one first."""
    by_span = {(each.tenant, each.trace_id, each.span_id): each for each in ordered}
    for each in ordered:
        parent = by_span.get((each.tenant, each.trace_id, each.parent_span_id))
        if parent is not None:
            yield (each, parent) if each.rank() < parent.rank() else (parent, each)


def _at_equal_times(ordered: Sequence[Recording]) -> Iterator[tuple[Recording, Recording]]:
    """Yield pairs of a foreign row and one of Legato's in the same trace that end at about the same time."""
    own: dict[tuple[str, bytes], list[Recording]] = defaultdict(list)
    for each in ordered:
        if each.is_own:
            own[each.tenant, each.trace_id].append(each)
    for group in own.values():
        group.sort(key=attrgetter("end_ns"))
    for each in ordered:
        group = own.get((each.tenant, each.trace_id), []) if not each.is_own else []
        first = bisect_left(group, each.end_ns - _ALIKE_NS, key=attrgetter("end_ns"))
        for richer in group[first : first + _COMPARED_MAX]:
            if richer.end_ns <= each.end_ns + _ALIKE_NS:
                yield each, richer


def _is_same(one: Recording, other: Recording) -> bool:
    if one.vantage != other.vantage or _contradict(one, other) or not _of_one_service(one, other):
        return False
    overlap_ns = min(one.end_ns, other.end_ns) - max(one.start_ns, other.start_ns)
    if one.response_id and other.response_id and one.trace_id == other.trace_id:
        return 2 * overlap_ns >= min(one.duration_ns, other.duration_ns)
    if one.response_id and other.response_id:
        # Some servers count their ids from 0 or send one id for ever, so in two traces the time decides, too.
        return _is_alike(one, other)
    if one.span_id == other.parent_span_id or other.span_id == one.parent_span_id:
        # An agent's span around several requests is much longer than each of them.
        return 2 * overlap_ns >= max(one.duration_ns, other.duration_ns)
    return one.is_own != other.is_own and _is_alike(one, other)


def _contradict(one: Recording, other: Recording) -> bool:
    """Whether two rows name different responses or models. Frameworks put the provider before the model's name."""
    ids, models = ({getattr(each, name) for each in (one, other)} - {""} for name in ("response_id", "model"))
    return len(ids) > 1 or len({model.rpartition("/")[2] for model in models}) > 1


def _is_alike(one: Recording, other: Recording) -> bool:
    """Whether two rows end together, and begin together. Logfire's row begins with the headers of the response."""
    own, foreign = (one, other) if one.is_own else (other, one)
    apart_ns = foreign.start_ns - own.start_ns
    is_logfire = own.is_own and foreign.emitter.startswith("logfire") and 0 <= apart_ns <= own.duration_ns
    return abs(one.end_ns - other.end_ns) <= _ALIKE_NS and (abs(apart_ns) <= _ALIKE_NS or is_logfire)


def _of_one_service(one: Recording, other: Recording) -> bool:
    """Whether two rows may come from one process. A proxy's client has the same response as the application's, and its row counts."""
    names = {each.service_name for each in (one, other) if each.service_name and not each.service_name.startswith("unknown_service")}
    return len(names) < 2


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
    columns = {name: rows[name].to_pylist() for name in _COLUMNS}
    columns["start_ns"] = rows["start_time"].cast(pa.int64()).to_pylist()
    columns["duration_ns"] = rows["duration_ns"].to_pylist()
    columns["has_chunks"] = pc.greater(pc.list_value_length(rows["dt_us"]), 0).to_pylist()
    columns["has_ttft"] = pc.is_valid(rows["ttft_us"]).to_pylist()
    columns["any_chunk"] = [ANY_CHUNK in flags for flags in rows["flags"].to_pylist()]
    out = (
        Recording(**dict(zip(columns, values, strict=True)), place=(batch, row))
        for row, values in enumerate(zip(*columns.values(), strict=True))
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
