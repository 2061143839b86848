"""The data of one stream's page: its vantages on one time axis, its stalls with their verdicts, and the engine in the same time.

``stream_view`` finds the recordings of a trace or response id, puts them on one axis, and asks `stream_verdicts` and `stream_lanes` for the
rest. All times are µs since the start of the axis. This module judges no stream and renders nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legato_ingest.definitions import CONTENT_KINDS, HOLD_STEP_US, STALL_MS, VANTAGES
from legato_ingest.errors import LegatoError
from legato_ingest.web.stream_lanes import Run, engine_lanes
from legato_ingest.web.stream_verdicts import but_for, engine_of, stalls_of

__all__ = ["VANTAGES_SHOWN", "NoSuchStream", "stream_view"]

Row = Mapping[str, Any]
Ints = NDArray[np.int64]

VANTAGES_SHOWN = 40
"""Recordings on one page. A trace of an agent may hold more; the view then counts the others."""
# Recordings of one response under several traces start at most this far apart.
_APART_NS = 60_000_000_000
_HEX = re.compile(r"[0-9a-f]{8,32}")
_PLACE = {name: place for place, name in enumerate(VANTAGES)}
_FOUND = """
SELECT
    lower(hex(trace_id)) AS trace, response_id, {is_one} AS is_one,
    toUnixTimestamp64Nano(min(start_time)) AS first_ns, toUnixTimestamp64Nano(max(start_time)) AS last_ns
FROM stream_revs
WHERE {which}
GROUP BY trace, response_id, is_one
ORDER BY first_ns DESC
LIMIT 200"""
_BY_TRACE = _FOUND.format(is_one="0", which="trace_id = unhex({id:String})")
_BY_NAME = _FOUND.format(
    is_one="(response_id = {given:String} OR lower(hex(span_id)) = {id:String})",
    which="response_id = {given:String} "
    "OR if({hex:UInt8} = 1, startsWith(lower(hex(trace_id)), {id:String}) OR lower(hex(span_id)) = {id:String}, 0)",
)
_FACTS = (
    "vantage", "outcome", "error_type", "service", "model", "response_model", "response_id", "finish_reason", "engine_id", "transport",
    "route", "emitter", "start", "trace", "span",
)  # fmt: skip
_FIGURES = (
    "ttfb_us", "ttft_us", "ttfo_us", "chunks", "chunks_dropped", "content_bytes", "input_tokens", "output_tokens", "gaps", "gap_max_us",
    "gap_p50_us", "gap_p99_us", "gap_open_us", "stalls_250ms", "starved_4wps_us", "good",
)  # fmt: skip
_VANTAGES = f"""
SELECT
    lower(hex(trace_id)) AS trace, lower(hex(span_id)) AS span, toUnixTimestamp64Nano(start_time) AS start_ns,
    formatDateTime(start_time, '%Y-%m-%dT%H:%i:%S.%fZ', 'UTC') AS start, ended, duration_ns, vantage, outcome, error_type,
    service_name AS service, model, response_model, response_id, finish_reason, route, engine_id, emitter, transport, clock, content_chunks,
    {", ".join(_FIGURES)}, dt_us, chunk_bytes, chunk_tokens, chunk_kind, chunk_hold_64us
FROM streams
WHERE start_time BETWEEN fromUnixTimestamp64Nano({{first_ns:Int64}}) - INTERVAL 1 HOUR
    AND fromUnixTimestamp64Nano({{last_ns:Int64}}) + INTERVAL 1 HOUR
    AND (has({{traces:Array(String)}}, lower(hex(trace_id))) OR (response_id != '' AND has({{responses:Array(String)}}, response_id)))
ORDER BY start_time, span_id
LIMIT 200"""


class NoSuchStream(LegatoError):
    """No stream has the identity, or several traces start with it. The message says which."""


def stream_view(run: Run, identity: str, *, stall_us: int = round(STALL_MS * 1_000)) -> dict[str, Any]:
    """Return the page's data of the stream with this trace id, start of a trace id (8 digits or more), span id or response id.

    ``run(sql, parameters)`` returns the rows of a read-only statement of one tenant. The result can be written as JSON; times are in µs
    since the start of the axis, sizes in bytes, one list a column (see ``column``). ``stall_us``: the shortest gap that is a stall.
    Raises ``NoSuchStream``, and what ``run`` raises.
    """
    rows = _recordings(run, identity.strip())
    shown = _ordered(rows)[:VANTAGES_SHOWN]
    offsets, is_one_clock = _offsets_us(shown)
    times = [np.cumsum(integers(row["dt_us"])) + offset for row, offset in zip(shown, offsets, strict=True)]
    end_us = max(_end_us(row, offset, at) for row, offset, at in zip(shown, offsets, times, strict=True))
    felt = max(range(len(shown)), key=lambda number: (len(times[number]) > 0, _PLACE.get(shown[number]["vantage"], -1)))
    gaps = [_gaps(row, at, stall_us) if place in _judged(shown) else [] for place, (row, at) in enumerate(zip(shown, times, strict=True))]
    stalls, verdicts = stalls_of(run, shown, offsets, gaps)
    engine, zero_ns = engine_of(verdicts, shown), _zero_ns(shown, offsets)
    return {
        "identity": identity,
        **{name: shown[felt][name] for name in ("service", "model", "outcome", "start", "response_id", "trace")},
        "duration_us": int(end_us),
        "one_clock": is_one_clock,
        "felt": felt,
        "vantages": [_vantage(*each) for each in zip(shown, offsets, times, strict=True)],
        "vantages_left_out": len(rows) - len(shown),
        "stalls": stalls,
        "but_for": but_for(run, shown),
        **engine_lanes(run, engine, zero_ns, int(end_us)),
    }


def integers(values: Sequence[int | str]) -> Ints:
    """Return numbers of a JSON row as an array: the store may write 64-bit numbers as text."""
    return np.asarray(values).astype(np.int64)


def column(values: Ints) -> list[int] | int:
    """Return a column for JSON: one number if all values are equal (and there is one), else the list of them."""
    if len(values) and (values == values[0]).all():
        return int(values[0])
    listed: list[int] = values.tolist()
    return listed


def _recordings(run: Run, given: str) -> list[dict[str, Any]]:
    """The rows of the stream's vantages. A response id selects its stream among those of the trace, and rows without a response id."""
    found = _newest(_found(run, given))
    named = [row for row in found if row["is_one"]]
    traces = sorted({row["trace"] for row in named or found})
    if len(traces) > 1 and not named:
        raise NoSuchStream(f"{len(traces)} traces start with {given}: {', '.join(traces[:5])}{' …' if len(traces) > 5 else ''}")
    responses = sorted({row["response_id"] for row in named or found} - {""})
    first_ns, last_ns = min(int(row["first_ns"]) for row in found), max(int(row["last_ns"]) for row in found)
    rows = run(_VANTAGES, {"traces": traces, "responses": responses, "first_ns": first_ns, "last_ns": last_ns})
    near = [row for row in rows if row["trace"] in traces or first_ns - _APART_NS <= int(row["start_ns"]) <= last_ns + _APART_NS]
    return [row for row in near if not (named and responses) or row["response_id"] in ("", *responses)]


def _found(run: Run, given: str) -> list[dict[str, Any]]:
    """The traces and responses that an id matches. A complete trace id is looked up by its index."""
    as_hex = given.lower().replace("-", "")
    is_hex = bool(_HEX.fullmatch(as_hex))
    found = run(_BY_TRACE, {"id": as_hex}) if is_hex and len(as_hex) == 32 else []
    found = found or run(_BY_NAME, {"id": as_hex, "given": given, "hex": int(is_hex)})
    if not found:
        raise NoSuchStream(f"no stream has the id {given!r} (trace id, span id or response id)")
    return found


def _newest(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of several streams with this response id, the newest: a response that is replayed keeps its id."""
    named = [row for row in found if row["is_one"]]
    newest_ns = max((int(row["first_ns"]) for row in named), default=0)
    return [row for row in found if not (row["is_one"] and int(row["first_ns"]) < newest_ns - _APART_NS)]


def _ordered(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows grouped by response, each response's vantages from the engine to the end user."""
    first: dict[str, int] = {}
    for row in rows:
        first[row["response_id"]] = min(int(row["start_ns"]), first.get(row["response_id"], int(row["start_ns"])))
    return sorted(
        rows, key=lambda row: (first[row["response_id"]], row["response_id"], _PLACE.get(row["vantage"], 9), int(row["start_ns"]))
    )


def _offsets_us(rows: Sequence[Row]) -> tuple[list[int], bool]:
    """The start of each row on the axis, and whether one clock gives them all.

    Rows of one host share a monotonic clock (``boot id:time namespace:anchor``; wall time = anchor + clock), so their starts are exact.
    Otherwise no clock is compared with another: the vantages of one response start together, at the earliest of their starts.
    """
    clocks = [row["clock"].rpartition(":") for row in rows]
    starts = [int(row["start_ns"]) for row in rows]
    known = all(name.count(":") == 1 and anchor.lstrip("-").isdecimal() for name, _, anchor in clocks)
    if known and len({name for name, _, _ in clocks}) == 1:
        starts = [start - int(anchor) for start, (_, _, anchor) in zip(starts, clocks, strict=True)]
        return [(start - min(starts)) // 1_000 for start in starts], True
    first: dict[str, int] = {}
    for row, start in zip(rows, starts, strict=True):
        first[row["response_id"]] = min(start, first.get(row["response_id"], start))
    return [(first[row["response_id"]] - min(starts)) // 1_000 for row in rows], len(rows) == 1


def _zero_ns(rows: Sequence[Row], offsets: Sequence[int]) -> int:
    """The wall time of the axis' start by the clock of the server, where the engine usually runs; else of the first row."""
    place = next((number for number, row in enumerate(rows) if row["vantage"] in ("engine", "server")), 0)
    return int(rows[place]["start_ns"]) - 1_000 * offsets[place]


def _end_us(row: Row, offset: int, at: Ints) -> int:
    return max(offset + int(row["duration_ns"]) // 1_000, int(at[-1]) if len(at) else 0, 1)


def _judged(rows: Sequence[Row]) -> set[int]:
    """The rows with gaps that are judged: the clients; of a trace without a client, the servers; else what was recorded last."""
    for name in ("client", "server"):
        found = {number for number, row in enumerate(rows) if row["vantage"] == name}
        if found:
            return found
    return {len(rows) - 1}


def _gaps(row: Row, at: Ints, stall_us: int) -> list[tuple[int, int, bool]]:
    """The gaps of at least ``stall_us`` between chunks with content, as start and length in µs, and whether the stream ended in it."""
    reads = at[np.isin(integers(row["chunk_kind"]), CONTENT_KINDS)]
    lengths = np.diff(reads)
    long = np.flatnonzero(lengths >= stall_us)
    found = [(start, length, False) for start, length in zip(reads[long].tolist(), lengths[long].tolist(), strict=True)]
    open_us = int(row["gap_open_us"] or 0)
    return [*found, (int(reads[-1]), open_us, True)] if len(reads) and open_us >= stall_us else found


def _vantage(row: Row, offset: int, at: Ints) -> dict[str, Any]:
    """One vantage: facts, figures, and a column for each recorded property of its chunks; None where it was not recorded.

    ``dt_us``: time since the chunk before, for the first one since the start of the axis, so the sums are the times on the axis.
    """
    empty = not len(at)
    known = {name: None if empty or not row[name] else integers(row[name]) for name in ("chunk_bytes", "chunk_tokens", "chunk_hold_64us")}
    holds = known["chunk_hold_64us"]
    return {
        **{name: row[name] for name in _FACTS},
        **{name: None if row[name] is None else int(row[name]) for name in _FIGURES},
        "ended": bool(row["ended"]),
        "has_timeline": row["content_chunks"] is not None,
        "offset_us": offset,
        "duration_us": int(row["duration_ns"]) // 1_000,
        "dt_us": np.diff(at, prepend=0).tolist(),
        "kind": None if empty else column(integers(row["chunk_kind"])),
        "bytes": None if known["chunk_bytes"] is None else column(known["chunk_bytes"]),
        "tokens": None if known["chunk_tokens"] is None else column(known["chunk_tokens"]),
        "hold_us": None if holds is None else column(holds * HOLD_STEP_US),
    }
