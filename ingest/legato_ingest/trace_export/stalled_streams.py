"""Read the streams with verdicts to export, page by page, with their stalls.

A stream is exported by the time at which its end was received. That time never changes, so each stream has one turn, whatever is judged
again later. The module writes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from legato_ingest.causes import HEALTHY
from legato_ingest.definitions import SUPERSEDED_OUTCOME
from legato_ingest.storage import Store
from legato_ingest.storage.sql import after_until_ms, between_ns, quoted, time_ns, unquoted
from legato_ingest.storage.tenant_parts import part_of
from legato_ingest.trace_export.spans import Stall, StalledStream, StreamKey

__all__ = ["STALLS_MAX", "Page", "pages_between"]

STALLS_MAX = 128
"""Stalls of a stream that get a span; the longest do."""
_STREAMS_MAX = 250
# The clock that stamps verdicts may have been set back by this much since it stamped the streams.
_CLOCK_MS = 60_000
# The rows with which streams end. A row that stepped back for another of its response has no valid verdicts.
_ENDED = f"{{received}} AND ended AND outcome != '{SUPERSEDED_OUTCOME}'"
_SPAN = f"SELECT count(), toUnixTimestamp64Nano(min(start_time)), toUnixTimestamp64Nano(max(start_time)) FROM stream_revs WHERE {_ENDED}"
_STREAMS = f"""
SELECT tenant, {part_of("tenant")} AS part, toUnixTimestamp64Milli(received_at) AS received_ms,
    toUnixTimestamp64Nano(start_time) AS start_ns, trace_id, span_id, parent_span_id, duration_ns, vantage, service_name, model, emitter
FROM stream_revs
WHERE {_ENDED} AND {{inside}} AND {{after}}
    AND (tenant, start_time, trace_id, span_id) IN
        (SELECT tenant, start_time, trace_id, span_id FROM verdicts WHERE {{inside}} AND {{judged}} AND cause != '{HEALTHY}')
ORDER BY received_ms, tenant, trace_id, span_id
LIMIT {_STREAMS_MAX}"""
_OF_STREAMS = f"{{inside}} AND (tenant, start_time, trace_id, span_id) IN ({{keys}}) AND cause != '{HEALTHY}'"
_TOTALS = f"""
SELECT tenant, trace_id, span_id, toUInt32(count()) AS count, sum(gap_us) AS length_us, max(gap_us) AS longest_us, sumMap(parts) AS parts_ns
FROM verdicts FINAL
WHERE {_OF_STREAMS}
GROUP BY tenant, trace_id, span_id"""
_STALLS = f"""
SELECT tenant, trace_id, span_id, gap_start_us AS start_us, gap_us AS length_us, excess_us, error_us, cause, confidence, share,
    parts AS parts_ns, engine_id, missing, step_first, step_last, culprit_step AS root_step
FROM verdicts FINAL
WHERE {_OF_STREAMS}
ORDER BY length_us DESC, start_us
LIMIT {STALLS_MAX} BY tenant, trace_id, span_id"""
_KEY = ("tenant", "trace_id", "span_id")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """Some streams, in the order of their receipt. Every stream received until ``until_ms`` was in this page or an earlier one."""

    streams: Sequence[StalledStream]
    until_ms: int


def pages_between(store: Store, after_ms: int, until_ms: int, tenants: str = "1") -> Iterator[Page]:
    """Yield the stalled streams with an end that was received between these times; nothing without any. Raises ``StoreError``.

    ``tenants``: a condition on `tenant`.
    """
    received = f"{after_until_ms('received_at', after_ms, until_ms)} AND {tenants}"
    ((count, low, high),) = store.select(_SPAN.format(received=received))
    inside = between_ns("start_time", int(low), int(high))
    # A stream is judged after its receipt. One wrong clock would otherwise make `inside` a range of months.
    judged = f"judged_at >= {time_ns((after_ms - _CLOCK_MS) * 1_000_000)}"
    after = "1"
    while count:
        rows = _rows(store, _STREAMS.format(received=received, inside=inside, judged=judged, after=after))
        if rows:
            is_last = len(rows) < _STREAMS_MAX
            # Of the last millisecond there may be more streams than are in this page.
            yield Page(_streams(store, rows), until_ms if is_last else int(rows[-1]["received_ms"]) - 1)
            after = _after(rows[-1])
        count = len(rows) == _STREAMS_MAX


def _after(row: Row) -> str:
    """Return the condition that a stream is after this one in the order of the pages."""
    place = f"{int(row['received_ms'])}, {quoted(row['tenant'])}, {_fixed(row['trace_id'])}, {_fixed(row['span_id'])}"
    return f"(toUnixTimestamp64Milli(received_at), toString(tenant), trace_id, span_id) > ({place})"


def _fixed(value: bytes) -> str:
    return f"toFixedString({quoted(value)}, {len(value)})"


def _streams(store: Store, rows: Sequence[Row]) -> list[StalledStream]:
    """Return the streams of these rows with their stalls. A stream without a stall is left out: its last verdict was just withdrawn."""
    starts = [int(row["start_ns"]) for row in rows]
    keys = ", ".join(
        f"({quoted(row['tenant'])}, {time_ns(row['start_ns'])}, {_fixed(row['trace_id'])}, {_fixed(row['span_id'])})" for row in rows
    )
    which = {"inside": between_ns("start_time", min(starts), max(starts)), "keys": keys}
    totals = {_key(row): row for row in _rows(store, _TOTALS.format(**which))}
    stalls: defaultdict[StreamKey, list[Stall]] = defaultdict(list)
    for row in _rows(store, _STALLS.format(**which)):
        stalls[_key(row)].append(_stall(row))
    return [_stream(row, totals[_key(row)], stalls[_key(row)]) for row in rows if _key(row) in totals]


def _stream(row: Row, total: Row, stalls: Sequence[Stall]) -> StalledStream:
    names = ("vantage", "service_name", "model", "emitter")
    return StalledStream(
        **{name: row[name] for name in (*_KEY, "parent_span_id", "start_ns", *names)},
        part=int(row["part"]),
        received_ms=int(row["received_ms"]),
        duration_ns=int(row["duration_ns"] or 0),
        count=int(total["count"]),
        length_us=int(total["length_us"]),
        longest_us=int(total["longest_us"]),
        parts_ns=total["parts_ns"],
        stalls=tuple(stalls),
    )


def _stall(row: Row) -> Stall:
    return Stall(**{name: value for name, value in row.items() if name not in _KEY})


def _key(row: Mapping[str, Any]) -> StreamKey:
    return row["tenant"], row["trace_id"], row["span_id"]


def _rows(store: Store, sql: str) -> list[Row]:
    """Return the rows of a query with texts decoded; ids stay bytes."""
    return [{name: _value(name, value) for name, value in row.items()} for row in store.select_arrow(sql).to_pylist()]


def _value(name: str, value: Any) -> Any:
    if name in ("trace_id", "span_id", "parent_span_id"):
        return value
    if name == "parts_ns":
        return {unquoted(cause): int(ns) for cause, ns in value}
    return [unquoted(each) for each in value] if isinstance(value, list) else unquoted(value)
