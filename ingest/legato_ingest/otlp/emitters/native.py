"""Spans of Legato's own emitters: schema/WIRE.md.

They can say all that Legato knows of. What a particular emitter cannot see (reads and TTFB above the network, tokens, holds) it
leaves out.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.definitions import OUTCOMES
from legato_ingest.otlp.attributes import AttributeFault, Attributes
from legato_ingest.otlp.emitters.common import PORT_MAX, UINT32_MAX, facts_of
from legato_ingest.otlp.model import StreamFacts

__all__ = ["adapt"]

SNAPSHOT = "legato.stream.snapshot"
VANTAGES = frozenset(("engine", "server", "gateway", "client", "screen"))


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
    facts = facts_of(span, attributes, emitter=attributes.text("legato.emitter"), vantage=vantage, outcome=outcome)
    facts.rev = attributes.count("legato.stream.rev", UINT32_MAX) or 1
    facts.engine_id = attributes.text("legato.engine.id")
    facts.client_hash = attributes.text("legato.client.hash")
    facts.transport = attributes.text("legato.stream.transport")
    facts.clock = attributes.text("legato.stream.clock")
    facts.client_address = attributes.text("client.address")
    facts.client_port = attributes.count("client.port", PORT_MAX) or 0
    facts.wire_bytes = attributes.count("legato.stream.wire_bytes")
    facts.chunks = attributes.count("legato.stream.chunks", UINT32_MAX)
    facts.chunks_dropped = attributes.count("legato.stream.chunks_dropped", UINT32_MAX) or 0
    facts.ttfb_us = attributes.micros("legato.stream.ttfb")
    facts.timeline = attributes.packed("legato.stream.timeline")
    if facts.transport == "iterator":
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
