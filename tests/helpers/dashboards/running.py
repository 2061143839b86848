"""Streams that run now: reports of silence, and samples of the gauge of streams in flight."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from helpers.builders.batches import received_points, received_spans
from helpers.builders.points import gauge, metrics_request
from helpers.builders.spans import SECOND_NS, native_span, request
from helpers.servers.reading import stream, streams_in
from legato_ingest.otlp.batch import Limits
from legato_ingest.storage import Store

__all__ = ["in_flight", "silent", "standing"]


def silent(
    store: Store, number: int, silence_s: float, *, received_s: float = 0, vantage: str = "client", tenant: str = "", **more: Any
) -> None:
    """Store a report that stream ``number`` had been silent for so long, ``received_s`` ago; its text began after a second.

    ``trace``: the number of the stream that began its trace; by default it is this one.
    """
    at_ns = time.time_ns() - round(received_s * SECOND_NS)
    body = request({"service.name": more.pop("service", "shop")})
    length_ns = round((1 + silence_s) * SECOND_NS)
    attributes = {"legato.stream.silent_since": more.pop("since_us", 1_000_000), **more.pop("attributes", {})}
    start_ns = more.pop("start_ns", at_ns - length_ns)
    trace = bytes([more.pop("trace", number)]) * 16
    span = native_span(body, attributes, trace_id=trace, start_ns=start_ns, duration_ns=length_ns)
    span.name, span.parent_span_id = "legato.stream.silence", bytes([number + 100 * (vantage == "server")]) * 8
    for attribute in [each for each in span.attributes if each.key == "legato.stream.vantage"]:
        span.attributes.remove(attribute)
    span.kind = Span.SPAN_KIND_SERVER if vantage == "server" else Span.SPAN_KIND_CLIENT
    store.insert("stream_silences", received_spans(body, tenant=tenant, now_ns=at_ns, limits=Limits()).silences)


def standing(store: Store, number: int, gaps_ms: Sequence[float]) -> None:
    """Store a stream of two hours ago that stands still since these gaps, or without any since its start: a snapshot, and its silence."""
    start_ns, snapshot = time.time_ns() - 7_200 * SECOND_NS, {"legato.stream.outcome": "running", "legato.stream.rev": 1}
    attributes = {**snapshot, "legato.stream.span_id": bytes([number] * 8).hex(), "legato.stream.next_due": 90_000.0}
    made = stream(gaps_ms, 1_000, attributes=attributes, trace_id=bytes([number]) * 16, start_ns=start_ns, name="legato.stream.snapshot")
    drop = () if gaps_ms else ("legato.stream.timeline", "legato.stream.ttfb", "legato.stream.chunks")
    streams_in(store, [{**made, "drop": drop}], "chat", seed=number)
    since_us = round(1_000 * (1_000 + sum(gaps_ms))) if gaps_ms else 0
    silent(store, number, 300, since_us=since_us, start_ns=start_ns, service="chat")


def in_flight(
    store: Store, streams: int, *, service: str = "shop", vantage: str = "client", process: str = "a", ago_s: float = 0, tenant: str = ""
) -> None:
    """Store a sample of the gauge."""
    at_ns = time.time_ns() - round(ago_s * SECOND_NS)
    body = metrics_request({"service.name": service})
    named = {"legato.stream.vantage": vantage, "gen_ai.request.model": "model-a", "service.instance.id": process}
    gauge(body, "legato.stream.in_flight", streams, at_ns, attributes=named)
    store.insert("node_samples", received_points(body, tenant=tenant, now_ns=at_ns, limits=Limits()).samples)
