"""Spans of Legato's own emitters (schema/WIRE.md).

They can carry every value of a record. An emitter leaves out the values that it cannot observe: reads and TTFB above the network, tokens,
holds.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.definitions import OUTCOMES, VANTAGES, VERDICT_SCOPE
from legato_ingest.otlp.attributes import AttributeFault, Attributes
from legato_ingest.otlp.emitters.common import PORT_MAX, UINT32_MAX, genai_record
from legato_ingest.otlp.model import REV_MAX, Ignored, SilenceRecord, StreamRecord
from legato_ingest.timeline.codec import EMPTY

__all__ = ["convert"]

SNAPSHOT = "legato.stream.snapshot"
_SILENT_SINCE, _NEXT_DUE = "legato.stream.silent_since", "legato.stream.next_due"


def convert(span: Span, attributes: Attributes) -> StreamRecord | SilenceRecord | Ignored | None:
    """Return the record of a span of Legato's own emitters; None for any other span. Raises ``AttributeFault``.

    A span about a stall, which `legato serve` sent to a trace backend, comes back where that backend is a Collector that also sends here.
    """
    if attributes.scope == VERDICT_SCOPE:
        return Ignored("verdict", "legato-serve")
    if _SILENT_SINCE in attributes.own:
        return _silence(span, attributes)
    if "legato.stream.vantage" not in attributes.own:
        return None
    vantage, outcome = attributes.text("legato.stream.vantage"), attributes.text("legato.stream.outcome")
    snapshot = span.name == SNAPSHOT
    _check_vantage(vantage)
    if outcome not in OUTCOMES and not (snapshot and outcome == "running"):
        raise AttributeFault(f"legato.stream.outcome: an unknown outcome, expected one of {', '.join(sorted(OUTCOMES))}")
    record = genai_record(span, attributes, emitter=attributes.text("legato.emitter"), vantage=vantage, outcome=outcome)
    record.rev = attributes.count("legato.stream.rev", REV_MAX) or 1
    record.engine_id = attributes.text("legato.engine.id")
    record.client_hash = attributes.text("legato.client.hash")
    record.transport = attributes.text("legato.stream.transport")
    record.clock = attributes.text("legato.stream.clock")
    record.client_address = attributes.text("client.address")
    record.client_port = attributes.count("client.port", PORT_MAX) or 0
    record.wire_bytes = attributes.count("legato.stream.wire_bytes")
    record.chunks = attributes.count("legato.stream.chunks", UINT32_MAX)
    record.chunks_dropped = attributes.count("legato.stream.chunks_dropped", UINT32_MAX) or 0
    record.ttfb_us = attributes.micros("legato.stream.ttfb")
    record.timeline = attributes.packed("legato.stream.timeline")
    if record.timeline is None and record.chunks == 0:
        # Nothing arrived, as before an error: that is known, and such a stream is judged.
        record.timeline = EMPTY
    if record.transport == "iterator":
        record.flags.append("reads_unknown")
    if attributes.flag("legato.stream.start_unknown"):
        _forget_start(record)
    if snapshot:
        _mark_snapshot(record, attributes)
    return record


def _forget_start(record: StreamRecord) -> None:
    """The span starts after its request, at an unknown distance: times from the request are unknown, whatever the span says."""
    record.flags.append("start_unknown")
    record.start_known, record.ttfb_us, record.ttft_us = False, None, None


def _check_vantage(vantage: str) -> None:
    if vantage not in VANTAGES:
        raise AttributeFault(f"legato.stream.vantage: an unknown vantage, expected one of {', '.join(sorted(VANTAGES))}")


def _silence(span: Span, attributes: Attributes) -> SilenceRecord:
    """Return the record of a report about a silent stream. The span is a child of the stream's span, so its parent is the stream."""
    vantage = attributes.text("legato.stream.vantage") or ("server" if span.kind == Span.SPAN_KIND_SERVER else "client")
    _check_vantage(vantage)
    since_us, ran_us = attributes.count(_SILENT_SINCE) or 0, (span.end_time_unix_nano - span.start_time_unix_nano) // 1000
    if since_us > max(ran_us, 0):
        raise AttributeFault(f"{_SILENT_SINCE}: after the end of the span")
    return SilenceRecord(
        trace_id=span.trace_id,
        span_id=span.parent_span_id,
        parent_span_id=b"",
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        gap_start_us=since_us,
        silence_us=ran_us - since_us,
        resumed=attributes.flag("legato.stream.resumed"),
        vantage=vantage,
        service_name=attributes.text("service.name"),
        model=attributes.text("gen_ai.request.model"),
        engine_id=attributes.text("legato.engine.id"),
        clock=attributes.text("legato.stream.clock"),
        emitter=attributes.text("legato.emitter"),
        next_due_us=attributes.micros(_NEXT_DUE) or 0,
    )


def _mark_snapshot(record: StreamRecord, attributes: Attributes) -> None:
    """Make the record a rev of the stream that its attributes name. The snapshot's own span id and parent only transport it."""
    try:
        record.span_id = bytes.fromhex(attributes.text("legato.stream.span_id"))
    except ValueError:
        raise AttributeFault("legato.stream.span_id: a string that is not hexadecimal") from None
    record.parent_span_id = b""
    record.ended = False
    record.next_due_us = attributes.micros(_NEXT_DUE) or 0
