"""One stream by an id: its recordings at all vantages, and the engine's records of its requests.

An id is a trace id or its first 8 or more digits, a span id, or a response id; a reader of all tenants may put a tenant and a colon before
it. A gateway may not pass the trace context on, so recordings of one response under another trace belong to the stream as well. All
recordings are of one tenant: another may have copied the ids. This module judges no stream and renders nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from legato_ingest.errors import LegatoError
from legato_ingest.quoting import Value
from legato_ingest.reports.rows import Row, Run
from legato_ingest.reports.silences import add_silences

__all__ = ["RECORDINGS_MAX", "NoSuchStream", "Recordings", "find_stream", "requests_of"]

RECORDINGS_MAX = 200
"""Recordings that are read of one stream or trace; a trace of an agent may hold more."""
# Recordings of one response under several traces start at most this far apart. A response that is replayed later keeps its id.
_APART_NS = 60_000_000_000
_TRACE_DIGITS = 32
_HEX = re.compile(r"[0-9a-f]{8,32}")
_NAMED_MAX = 5
# The streams that an id matches: a full trace id by the index, otherwise the start of a trace id, a span id or a response id.
_FOUND = """
SELECT
    tenant, lower(hex(trace_id)) AS trace, response_id, {is_one} AS is_one,
    toUnixTimestamp64Nano(min(start_time)) AS first_ns, toUnixTimestamp64Nano(max(start_time)) AS last_ns
FROM stream_revs
WHERE {which}
GROUP BY tenant, trace, response_id, is_one
ORDER BY first_ns DESC
LIMIT 200 BY tenant
LIMIT 20000
"""
_BY_TRACE = _FOUND.format(is_one="0", which="trace_id = unhex({id:String})")
_BY_NAME = _FOUND.format(
    is_one="(response_id = {given:String} OR lower(hex(span_id)) = {id:String})",
    which="response_id = {given:String} "
    "OR if({hex:UInt8} = 1, startsWith(lower(hex(trace_id)), {id:String}) OR lower(hex(span_id)) = {id:String}, 0)",
)
# All vantages of these traces, and vantages of the same responses under other traces. The time range lets the primary key find them.
_RECORDINGS = f"""
SELECT
    tenant, lower(hex(trace_id)) AS trace, lower(hex(span_id)) AS span, toUnixTimestamp64Nano(start_time) AS start_ns,
    toString(start_time) AS start, rev,
    ended, duration_ns, flags, vantage, outcome, error_type, service_name AS service, service_version, provider, model, response_model,
    response_id, finish_reason, route, engine_id, emitter, transport, clock, input_tokens, output_tokens, wire_bytes,
    chunks, chunks_dropped, content_chunks, content_bytes, ttfb_us, ttft_us, ttfo_us, gaps, gap_max_us, gap_open_us, gap_p50_us, gap_p99_us,
    stalls_250ms, excess_250ms_us, starved_4wps_us, jitter_ratio, tokens_per_chunk, hold_sum_us, hold_max_us,
    dt_us, chunk_bytes, chunk_tokens, chunk_kind, chunk_hold_64us, good
FROM streams
WHERE tenant = {{tenant:String}}
    AND start_time BETWEEN fromUnixTimestamp64Nano({{first_ns:Int64}}) - INTERVAL 1 HOUR
    AND fromUnixTimestamp64Nano({{last_ns:Int64}}) + INTERVAL 1 HOUR
    AND (has({{traces:Array(String)}}, lower(hex(trace_id))) OR (response_id != '' AND has({{responses:Array(String)}}, response_id)))
ORDER BY start_time, span_id
LIMIT {RECORDINGS_MAX}
"""
_REQUESTS = """
SELECT response_id, engine_id, queued_us, prefill_us, preemptions, prompt_tokens
FROM engine_requests FINAL
WHERE tenant = {tenant:String} AND has({responses:Array(String)}, response_id)
"""


class NoSuchStream(LegatoError):
    """No stream has the id, or several traces start with it. The message says which."""


@dataclass(frozen=True, slots=True)
class Recordings:
    """The recordings of a stream, ordered by start. ``start`` is a text in UTC, other times are in the unit that their name ends with.
    ``silence`` is that of a running stream which stands still (``silences.add_silences``).

    ``is_cut``: there may be more than ``RECORDINGS_MAX``. ``earlier_traces``: the traces of earlier streams with the same response id, one
    for each recording.
    """

    rows: list[dict[str, Any]]
    is_cut: bool
    earlier_traces: list[str]


def find_stream(run: Run, identity: str) -> Recordings:
    """Return the recordings of the stream with this id. Raises ``NoSuchStream``, and what ``run`` raises.

    A trace may hold many streams (the calls of an agent). A response id selects its stream, and recordings without a response id.
    """
    given = identity.strip()
    matches = _matches(run, given)
    _expect_one_tenant(matches, given)
    earlier = _earlier(matches)
    matches = [row for row in matches if row not in earlier]
    named = [row for row in matches if row["is_one"]]
    traces = sorted({row["trace"] for row in named or matches})
    if len(traces) > 1 and not named:
        listed = f"{', '.join(traces[:_NAMED_MAX])}{' …' if len(traces) > _NAMED_MAX else ''}"
        raise NoSuchStream(f"{len(traces)} traces start with {given}: {listed}; give more digits")
    responses = _responses(named or matches)
    first_ns, last_ns = min(int(row["first_ns"]) for row in matches), max(int(row["last_ns"]) for row in matches)
    of = {"tenant": matches[0]["tenant"], "traces": traces, "responses": responses}
    rows = run(_RECORDINGS, {**of, "first_ns": first_ns, "last_ns": last_ns})
    near = [row for row in rows if row["trace"] in traces or first_ns - _APART_NS <= int(row["start_ns"]) <= last_ns + _APART_NS]
    own = [row for row in near if not (named and responses) or row["response_id"] in ("", *responses)]
    if not own and len(rows) == RECORDINGS_MAX:
        raise NoSuchStream(
            f"the trace of {given} has more than {RECORDINGS_MAX} recordings, and those of this stream are not among the first"
        )
    if not own:
        raise NoSuchStream(f"the recordings of {given} expired while they were read")
    add_silences(run, own)
    return Recordings(own, len(rows) == RECORDINGS_MAX, [row["trace"] for row in earlier])


def requests_of(run: Run, rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Return the engine's records of the requests of these recordings by response id, times in µs. Raises what ``run`` raises."""
    responses = _responses(rows)
    found = run(_REQUESTS, {"tenant": rows[0]["tenant"], "responses": responses}) if responses else []
    return {row["response_id"]: row for row in found}


def _responses(rows: Iterable[Row]) -> list[str]:
    return sorted({row["response_id"] for row in rows} - {""})


def _matches(run: Run, given: str) -> list[dict[str, Any]]:
    """The traces and responses that an id matches, and whether the id names one stream (``is_one``). Raises ``NoSuchStream``."""
    tenant, _, identity = given.partition(":")
    # Before the id as a whole, which another tenant may have chosen.
    found = (identity and _found(run, identity, tenant)) or _found(run, given)
    if not found:
        raise NoSuchStream(f"no stream has the id {given!r} (trace id, span id or response id)")
    return found


def _found(run: Run, given: str, tenant: str | None = None) -> list[dict[str, Any]]:
    """Matches of an id, of one tenant or of all: a full trace id is looked up by its index first."""

    def of_tenant(sql: str, parameters: dict[str, Value]) -> list[dict[str, Any]]:
        return [row for row in run(sql, parameters) if tenant is None or row["tenant"] == tenant]

    as_hex = given.lower().replace("-", "")
    is_hex = bool(_HEX.fullmatch(as_hex))
    found = of_tenant(_BY_TRACE, {"id": as_hex}) if is_hex and len(as_hex) == _TRACE_DIGITS else []
    return found or of_tenant(_BY_NAME, {"id": as_hex, "given": given, "hex": int(is_hex)})


def _expect_one_tenant(matches: Sequence[Row], given: str) -> None:
    """Raise ``NoSuchStream`` if several tenants have recordings with an id: that of one may be a copy."""
    tenants = sorted({row["tenant"] for row in matches})
    is_start = len({row["trace"] for row in matches}) > 1 and not any(row["is_one"] for row in matches)
    if len(tenants) > 1 and not is_start:
        listed = f"{', '.join(map(repr, tenants[:_NAMED_MAX]))}{' …' if len(tenants) > _NAMED_MAX else ''}"
        raise NoSuchStream(
            f"{len(tenants)} tenants have recordings with the id {given}: {listed}; give one of them, as {tenants[0]}:{given}"
        )


def _earlier(matches: Sequence[Row]) -> list[Row]:
    """Of several streams with one response id, all but the newest. Vantages of one stream start within a minute."""
    named = [row for row in matches if row["is_one"]]
    newest_ns = max((int(row["first_ns"]) for row in named), default=0)
    return [row for row in named if int(row["first_ns"]) < newest_ns - _APART_NS]
