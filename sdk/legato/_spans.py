"""Spans and their attributes (schema/WIRE.md).

Everything that leaves the process is assembled here: `attributes_of` serves the stream's span and its snapshots. The attributes contain
counts, times, names and ids, and no text of a prompt or a response.
"""

from __future__ import annotations

import base64
from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from operator import sub
from typing import Any

from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes

from legato._clock import anchor_ns, clock_id
from legato._pace import breathe
from legato._recorder import CONTENT, Columns, End, Origin, StreamRecorder
from legato._response import encodable
from legato._route import own_for_stream
from legato._state import recording_settings
from legato._timeline import HOLD_STEP_US, PART, TIMELINE, Kind, pack, parts_of
from legato._version import __version__

__all__ = ["PARTS", "attributes_of", "send_silence", "start_span", "tracer"]

PARTS = ("legato.stream.snapshot", "legato.stream.silence")
"""Names of the spans that report about a running stream; all others are the spans of streams."""

STALL_NS = 250_000_000
_HOLD_STEP_NS = HOLD_STEP_US * 1000
_TEXT = int(Kind.TEXT)
_QUEUED, _IDLE = 10, 12
_PAUSE_MASK = 255
# Of so many chunks one has content, in general.
_FIRST = 16
_OPEN_ENDED = ("client_cancel", "timeout", "upstream_error", "abandoned", "engine_abort")


@cache
def _supports_bytes() -> bool:
    """Whether the installed OpenTelemetry accepts attributes of type bytes; older releases decode them as text."""
    try:
        return isinstance(BoundedAttributes(attributes={"probe": b"\xff"}).get("probe"), bytes)
    except Exception:
        return False


# A provider, an anchor, and Legato's tracer for both. A provider makes a new tracer at each call, which takes 10 µs.
_newest: tuple[trace.TracerProvider, int, trace.Tracer] | None = None


def tracer(anchor: int) -> trace.Tracer:
    """Return Legato's tracer of the provider to which streams go now (`_route`). Emitter and clock are attributes of its scope.

    ``anchor``: that of the stream's clock (ns).
    """
    global _newest
    if recording_settings().disabled:
        return trace.NoOpTracer()
    mine, known = own_for_stream(), _newest
    provider = trace.get_tracer_provider() if mine is None else mine.provider
    if known is None or known[0] is not provider or known[1] != anchor:
        scope = {"legato.emitter": f"legato-python/{__version__}", "legato.stream.clock": clock_id(anchor)}
        known = _newest = provider, anchor, provider.get_tracer("legato", __version__, None, scope)
    return known[2]


def start_span(origin: Origin, start_ns: int, context: Any = None) -> trace.Span:
    """Start the span of a stream that began at this monotonic time, and give the stream its anchor."""
    name = f"chat {encodable(origin.model)}" if origin.model else "chat"
    origin.anchor_ns = anchor_ns()
    return tracer(origin.anchor_ns).start_span(name, context=context, kind=_span_kind(origin), start_time=origin.wall_ns(start_ns))


def send_silence(recorder: StreamRecorder, since_ns: int, until_ns: int, next_due_ns: int | None = None) -> None:
    """Send that a stream has had no content from ``since_ns`` until ``until_ns`` (monotonic), and when the next report is due.

    Without ``next_due_ns`` the silence is over: content arrived then, or the stream has no row.

    The span is small: it has what `legato live` shows, and no timeline. It starts with the stream and is a child of the stream's span.
    Times are rounded as in the timeline, so the gap that the stream's span has later begins at the same µs.
    """
    origin, kind = recorder.origin, _span_kind(recorder.origin)
    named = {
        "gen_ai.request.model": origin.model or (recorder.response.model if recorder.response else ""),
        "legato.engine.id": origin.engine_id,
    }
    attributes: dict[str, Any] = {key: encodable(value) for key, value in named.items() if value}
    attributes["legato.stream.silent_since"] = (since_ns - recorder.start_ns) // 1000
    if origin.vantage not in ("client", "server"):
        attributes["legato.stream.vantage"] = origin.vantage
    if next_due_ns is None:
        attributes["legato.stream.resumed"] = True
    else:
        attributes["legato.stream.next_due"] = (next_due_ns - recorder.start_ns) / 1e9
    context, start = trace.set_span_in_context(recorder.span), origin.wall_ns(recorder.start_ns)
    span = tracer(origin.anchor_ns).start_span(PARTS[1], context=context, kind=kind, attributes=attributes, start_time=start)
    span.end(end_time=origin.wall_ns(until_ns))


def _span_kind(origin: Origin) -> trace.SpanKind:
    return trace.SpanKind.SERVER if origin.vantage in ("server", "gateway") else trace.SpanKind.CLIENT


def attributes_of(recorder: StreamRecorder, columns: Columns, end: End | None, now_ns: int) -> dict[str, Any]:
    """Return the attributes of a stream's span; without an ``end``, those of a snapshot of the running stream."""
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
        holds = None if columns.holds_ns is None else [hold // _HOLD_STEP_NS for _, part in parts_of(columns.holds_ns) for hold in part]
        times = [(time - start) // 1000 for _, part in parts_of(columns.times) for time in part]
        packed = pack(times, columns.sizes, columns.tokens, columns.kinds, holds, _sockets(columns))
        attributes[TIMELINE] = packed if _supports_bytes() else base64.b64encode(packed).decode("ascii")
    if columns.dropped:
        attributes["legato.stream.chunks_dropped"] = columns.dropped
    if recorder.ttfb_ns is not None:
        attributes["legato.stream.ttfb"] = (recorder.ttfb_ns - start) / 1e9
    if recorder.wire_bytes is not None:
        attributes["legato.stream.wire_bytes"] = recorder.wire_bytes
    attributes.update(_gaps(columns, end, recorder.unkept_ns))
    if recorder.origin.is_start_known:
        attributes.update(_first_token(columns, recorder))
    else:
        attributes["legato.stream.start_unknown"] = True
    attributes.update(_origin(recorder.origin))
    attributes.update(_response(recorder))
    if end and end.error_type:
        attributes["error.type"] = end.error_type
    return attributes


def _sockets(columns: Columns) -> dict[int, list[int]] | None:
    """Return columns 10 and 12 (schema/TIMELINE.md) by id. A probe's values go to the first chunk of its read; 0 is unknown."""
    if not columns.probes:
        return None
    queued, idle = [0] * len(columns.times), [0] * len(columns.times)
    for number, (time_ns, queued_bytes, since_ms) in enumerate(columns.probes):
        if not number & _PAUSE_MASK:
            breathe()
        place = bisect_left(columns.times, time_ns)
        if place < len(columns.times) and columns.times[place] == time_ns:
            queued[place], idle[place] = queued_bytes + 1, since_ms + 1
    return {_QUEUED: queued, _IDLE: idle}


def _gaps(columns: Columns, end: End | None, unkept_ns: int) -> dict[str, Any]:
    """Return the longest gap between reads with content and the number of stalls, both including the open gap.

    ``unkept_ns``: the time of the last content that is not in the columns; 0 without any.
    """
    times: Sequence[int] = columns.times
    if columns.kinds.count(_TEXT) != len(times):
        kinds = columns.kinds
        times = [time for at, part in parts_of(times) for time, kind in zip(part, kinds[at : at + PART], strict=True) if kind in CONTENT]
    longest, stalls = -1, 0
    for at, part in parts_of(times):
        # The first gap of a further part is that to the part before.
        gaps = list(map(sub, part, [times[at - 1], *part])) if at else list(map(sub, part[1:], part))
        slowest = max(gaps, default=-1)
        longest = max(longest, slowest)
        stalls += sum(gap >= STALL_NS for gap in gaps) if slowest >= STALL_NS else 0
    if end and end.outcome in _OPEN_ENDED and times:
        open_ns = max(0, end.time_ns - max(times[-1], unkept_ns))
        longest, stalls = max(longest, open_ns), stalls + (open_ns >= STALL_NS)
    return {"legato.stream.gap_max": longest / 1e9, "legato.stream.stalls": stalls} if longest >= 0 else {}


def _first_token(columns: Columns, recorder: StreamRecorder) -> dict[str, Any]:
    """Return the time to first token under each of the four keys that back ends read."""
    kinds = columns.kinds
    place = next((at for at, kind in enumerate(kinds[:_FIRST]) if kind in CONTENT), None)
    if place is None:
        place = min((kinds.index(kind) for kind in CONTENT if kind in kinds), default=None)
    if place is None:
        return {}
    first = columns.times[place]
    seconds = (first - recorder.start_ns) / 1e9
    moment = datetime.fromtimestamp(recorder.origin.wall_ns(first) / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
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
    return {key: encodable(value) if isinstance(value, str) else value for key, value in named.items() if value}


def _response(recorder: StreamRecorder) -> dict[str, Any]:
    response = recorder.response
    if response is None:
        return {}
    found: dict[str, Any] = {}
    if response.response_id:
        found["gen_ai.response.id"] = response.response_id
    if response.model and not recorder.origin.model:
        found["gen_ai.request.model"] = response.model
    elif response.model and response.model != recorder.origin.model:
        found["gen_ai.response.model"] = response.model
    if response.finish_reasons:
        found["gen_ai.response.finish_reasons"] = list(response.finish_reasons)
    if response.input_tokens is not None:
        found["gen_ai.usage.input_tokens"] = response.input_tokens
    if response.output_tokens is not None:
        found["gen_ai.usage.output_tokens"] = response.output_tokens
    return found
