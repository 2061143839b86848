"""From a recorder to the attributes of its span: schema/WIRE.md.

One idea: all that leaves the process is put together here, in one function for the stream's span and its snapshots alike. It holds no
text of any prompt or response: counts, times and the response's own ids.
"""

from __future__ import annotations

import base64
from bisect import bisect_left
from datetime import UTC, datetime
from functools import cache
from operator import sub
from typing import Any

from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes

from legato._clock import anchor_ns, clock_id, wall_ns
from legato._recorder import Columns, End, Origin, StreamRecorder
from legato._timeline import HOLD_STEP_US, Kind, pack
from legato._version import __version__

__all__ = ["attributes_of", "start_span", "tracer"]

VISIBLE_NS = 250_000_000
_HOLD_STEP_NS = HOLD_STEP_US * 1000
_TEXT = int(Kind.TEXT)
_CONTENT = (_TEXT, int(Kind.REASONING), int(Kind.TOOL))
_QUEUED, _IDLE = 10, 12
_OPEN_ENDED = ("client_cancel", "timeout", "upstream_error", "abandoned", "engine_abort")


@cache
def _sends_bytes() -> bool:
    """Whether the installed OpenTelemetry carries bytes; older ones take them for text."""
    try:
        return isinstance(BoundedAttributes(attributes={"probe": b"\xff"}).get("probe"), bytes)
    except Exception:
        return False


@cache
def _scope() -> dict[str, str]:
    return {"legato.emitter": f"legato-python/{__version__}", "legato.stream.clock": clock_id()}


def tracer() -> trace.Tracer:
    """Legato's tracer of the current provider. What is the same for all spans of a process stands on its scope."""
    return trace.get_tracer("legato", __version__, attributes=_scope())


def start_span(origin: Origin, start_ns: int, context: Any = None) -> trace.Span:
    """The stream's span, started at this monotonic time."""
    kind = trace.SpanKind.SERVER if origin.vantage in ("server", "gateway") else trace.SpanKind.CLIENT
    name = f"chat {origin.model}" if origin.model else "chat"
    return tracer().start_span(name, context=context, kind=kind, start_time=wall_ns(start_ns))


def attributes_of(recorder: StreamRecorder, columns: Columns, end: End | None, now_ns: int) -> dict[str, Any]:
    """The attributes of a stream's span (``end`` given) or of a snapshot at ``now_ns``."""
    start = recorder.start_ns
    count = len(columns.times)
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.stream": True,
        "legato.stream.vantage": recorder.origin.vantage,
        "legato.stream.outcome": end.outcome if end else "running",
        "legato.stream.chunks": count + columns.dropped,
        "legato.stream.transport": recorder.origin.transport,
    }
    if count:
        holds = None if columns.holds_ns is None else [hold // _HOLD_STEP_NS for hold in columns.holds_ns]
        times = [(time - start) // 1000 for time in columns.times]
        packed = pack(times, columns.sizes, columns.tokens, columns.kinds, holds, _sockets(columns))
        attributes["legato.stream.timeline"] = packed if _sends_bytes() else base64.b64encode(packed).decode("ascii")
    if columns.dropped:
        attributes["legato.stream.chunks_dropped"] = columns.dropped
    if recorder.ttfb_ns is not None:
        attributes["legato.stream.ttfb"] = (recorder.ttfb_ns - start) / 1e9
    if recorder.wire_bytes is not None:
        attributes["legato.stream.wire_bytes"] = recorder.wire_bytes
    attributes.update(_gaps(columns, end))
    attributes.update(_first_token(columns, start))
    attributes.update(_origin(recorder.origin))
    attributes.update(_response(recorder))
    if end and end.error_type:
        attributes["error.type"] = end.error_type
    return attributes


def _sockets(columns: Columns) -> dict[int, list[int]] | None:
    """The columns of the socket (schema/TIMELINE.md, 10 and 12), for the first chunk of each read that it was asked about."""
    if not columns.looks:
        return None
    queued, idle = [0] * len(columns.times), [0] * len(columns.times)
    for time_ns, waiting, since_ms in columns.looks:
        place = bisect_left(columns.times, time_ns)
        if place < len(columns.times) and columns.times[place] == time_ns:
            queued[place], idle[place] = waiting + 1, since_ms + 1
    return {_QUEUED: queued, _IDLE: idle}


def _gaps(columns: Columns, end: End | None) -> dict[str, Any]:
    """The longest gap between reads with content, and how many are visible; the open gap at a bad end included."""
    times = columns.times
    if columns.kinds.count(_TEXT) != len(times):
        times = [time for time, kind in zip(times, columns.kinds, strict=True) if kind in _CONTENT]
    gaps = list(map(sub, times[1:], times))
    if end and end.outcome in _OPEN_ENDED and times:
        gaps.append(max(0, end.time_ns - times[-1]))
    if not gaps:
        return {}
    longest = max(gaps)
    stalls = sum(gap >= VISIBLE_NS for gap in gaps) if longest >= VISIBLE_NS else 0
    return {"legato.stream.gap_max": longest / 1e9, "legato.stream.stalls": stalls}


def _first_token(columns: Columns, start_ns: int) -> dict[str, Any]:
    """Time to first token under the four keys that back ends read."""
    first = next((time for time, kind in zip(columns.times, columns.kinds, strict=True) if kind in _CONTENT), None)
    if first is None:
        return {}
    seconds = (first - start_ns) / 1e9
    moment = datetime.fromtimestamp((first + anchor_ns) / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "gen_ai.response.time_to_first_chunk": seconds,
        "gen_ai.client.operation.time_to_first_chunk": seconds,
        "gen_ai.server.ttft": seconds,
        "langfuse.observation.completion_start_time": moment,
    }


def _origin(origin: Origin) -> dict[str, Any]:
    named: dict[str, Any] = {
        "gen_ai.provider.name": origin.provider,
        "gen_ai.request.model": origin.model,
        "gen_ai.conversation.id": origin.conversation_id,
        "http.route": origin.route,
        "legato.engine.id": origin.engine_id,
        "legato.client.hash": origin.client_hash,
        "client.address": origin.client_address,
        "client.port": origin.client_port,
        "server.address": origin.server_address,
        "server.port": origin.server_port,
    }
    return {key: value for key, value in named.items() if value}


def _response(recorder: StreamRecorder) -> dict[str, Any]:
    facts = recorder.facts
    if facts is None:
        return {}
    found: dict[str, Any] = {}
    if facts.response_id:
        found["gen_ai.response.id"] = facts.response_id
    if facts.model and not recorder.origin.model:
        found["gen_ai.request.model"] = facts.model
    elif facts.model and facts.model != recorder.origin.model:
        found["gen_ai.response.model"] = facts.model
    if facts.finish_reasons:
        found["gen_ai.response.finish_reasons"] = list(facts.finish_reasons)
    if facts.input_tokens is not None:
        found["gen_ai.usage.input_tokens"] = facts.input_tokens
    if facts.output_tokens is not None:
        found["gen_ai.usage.output_tokens"] = facts.output_tokens
    return found
