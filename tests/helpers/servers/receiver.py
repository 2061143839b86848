"""A receiver of OTLP: it answers with a chosen status and keeps all requests. It checks a Collector or an SDK, not the ingest."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Iterator
from dataclasses import dataclass, field

import zstandard
from fastapi import FastAPI, Request, Response
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from helpers.servers.serving import served

__all__ = ["ReceivedStream", "Receiver", "Received", "receiver"]


@dataclass(frozen=True)
class Received:
    """One received request: path, decompressed body, Authorization header, and the status of the reply."""

    path: str
    body: bytes
    authorization: str
    status: int


@dataclass(frozen=True)
class ReceivedStream:
    """The span of a stream: its service, model, outcome and number of chunks, and its ids in hexadecimal."""

    service: str
    model: str
    outcome: str
    chunks: int
    trace_id: str
    span_id: str
    parent_id: str


def _streams(resource: ResourceSpans) -> Iterator[ReceivedStream]:
    service = next((each.value.string_value for each in resource.resource.attributes if each.key == "service.name"), "")
    for scope in resource.scope_spans:
        for span in scope.spans:
            if span.name.startswith("chat"):
                ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                found = {each.key: each.value for each in span.attributes}
                outcome, chunks = found["legato.stream.outcome"].string_value, found["legato.stream.chunks"].int_value
                yield ReceivedStream(service, span.name.removeprefix("chat").strip(), outcome, chunks, *ids)


@dataclass
class Receiver:
    """The receiver's URL, the status and the body of its replies, and the requests received so far."""

    url: str = ""
    status: int = 200
    reply: bytes = b""
    received: list[Received] = field(default_factory=list)

    @property
    def accepted(self) -> list[Received]:
        """The requests that were answered with 200."""
        return [each for each in self.received if each.status == 200]

    @property
    def streams(self) -> list[ReceivedStream]:
        """The streams of the accepted requests."""
        bodies = [ExportTraceServiceRequest.FromString(each.body) for each in self.accepted if each.path == "/v1/traces"]
        return [stream for body in bodies for resource in body.resource_spans for stream in _streams(resource)]


def _decompressed(body: bytes, encoding: str) -> bytes:
    if encoding == "zstd":
        return zstandard.ZstdDecompressor().decompressobj().decompress(body)
    return gzip.decompress(body) if encoding == "gzip" else body


@contextlib.contextmanager
def receiver() -> Iterator[Receiver]:
    """Run a receiver on a free port."""
    app, kept = FastAPI(), Receiver()

    async def accept(request: Request) -> Response:
        body = _decompressed(await request.body(), request.headers.get("content-encoding", ""))
        kept.received.append(Received(request.url.path, body, request.headers.get("authorization", ""), kept.status))
        return Response(kept.reply, kept.status, media_type="application/x-protobuf")

    app.add_api_route("/v1/traces", accept, methods=["POST"])
    app.add_api_route("/v1/metrics", accept, methods=["POST"])
    with served(app) as url:
        kept.url = url
        yield kept
