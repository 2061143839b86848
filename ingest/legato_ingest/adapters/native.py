"""Spans of Legato's own emitters: schema/WIRE.md.

They can say all that Legato knows of. What a particular emitter cannot see (reads and TTFB above the network, tokens, holds) it
leaves out.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.attributes import AttributeFault, Attributes
from legato_ingest.facts import OUTCOMES, StreamFacts

__all__ = ["adapt"]

SNAPSHOT = "legato.stream.snapshot"
VANTAGES = frozenset(("engine", "server", "gateway", "client", "screen"))
_PORT_MAX = 65_535
_UINT32_MAX = 2**32 - 1


def adapt(span: Span, attributes: Attributes) -> StreamFacts | None:
    """The facts of a span of Legato's own; ``None`` when it is none. Raises ``AttributeFault``."""
    if "legato.stream.vantage" not in attributes.own:
        return None
    vantage, outcome = attributes.text("legato.stream.vantage"), attributes.text("legato.stream.outcome")
    snapshot = span.name == SNAPSHOT
    if vantage not in VANTAGES:
        raise AttributeFault("legato.stream.vantage: a string that is no vantage")
    if outcome not in OUTCOMES and not (snapshot and outcome == "running"):
        raise AttributeFault("legato.stream.outcome: a string that is no outcome")
    timeline = attributes.packed("legato.stream.timeline")
    transport = attributes.text("legato.stream.transport")
    facts = StreamFacts(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_span_id,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        otlp_bytes=span.ByteSize(),
        emitter=attributes.text("legato.emitter"),
        rev=attributes.count("legato.stream.rev", _UINT32_MAX) or 1,
        vantage=vantage,
        outcome=outcome,
        error_type=attributes.text("error.type"),
        service_name=attributes.text("service.name"),
        service_version=attributes.text("service.version"),
        provider=attributes.text("gen_ai.provider.name"),
        model=attributes.text("gen_ai.request.model"),
        response_model=attributes.text("gen_ai.response.model"),
        response_id=attributes.text("gen_ai.response.id"),
        finish_reason=attributes.first_text("gen_ai.response.finish_reasons"),
        route=attributes.text("http.route"),
        conversation_id=attributes.text("gen_ai.conversation.id"),
        engine_id=attributes.text("legato.engine.id"),
        client_hash=attributes.text("legato.client.hash"),
        transport=transport,
        clock=attributes.text("legato.stream.clock"),
        client_address=attributes.text("client.address"),
        client_port=attributes.count("client.port", _PORT_MAX) or 0,
        server_address=attributes.text("server.address"),
        server_port=attributes.count("server.port", _PORT_MAX) or 0,
        input_tokens=attributes.count("gen_ai.usage.input_tokens", _UINT32_MAX),
        output_tokens=attributes.count("gen_ai.usage.output_tokens", _UINT32_MAX),
        wire_bytes=attributes.count("legato.stream.wire_bytes"),
        chunks=attributes.count("legato.stream.chunks", _UINT32_MAX),
        chunks_dropped=attributes.count("legato.stream.chunks_dropped", _UINT32_MAX) or 0,
        ttfb_us=attributes.micros("legato.stream.ttfb"),
        ttft_us=attributes.micros("gen_ai.response.time_to_first_chunk"),
        timeline=timeline,
    )
    if transport == "iterator":
        facts.flags.append("reads_unknown")
    if snapshot:
        _mark_snapshot(facts, attributes)
    return facts


def _mark_snapshot(facts: StreamFacts, attributes: Attributes) -> None:
    """A snapshot is a rev of the stream that its attributes name; its own span id and parent are means of transport."""
    try:
        facts.span_id = bytes.fromhex(attributes.text("legato.stream.span_id"))
    except ValueError:
        raise AttributeFault("legato.stream.span_id: a string that is not hexadecimal") from None
    facts.parent_span_id = b""
    facts.ended = False
    facts.next_due_us = attributes.micros("legato.stream.next_due") or 0
