"""The OTLP endpoint in a thread with a client, checks of its replies, and a stand-in for the committer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, cast

import httpx
from google.protobuf.json_format import Parse
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

from helpers.builders.spans import native_span, request
from helpers.servers.serving import served
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Batch
from legato_ingest.settings import load
from legato_ingest.write import app as otlp_endpoint
from legato_ingest.write.body import Entry
from legato_ingest.write.committer import Committer, Receipt

__all__ = ["METRICS", "PROTOBUF", "TRACES", "Endpoint", "StubCommitter", "accepted", "endpoint_over", "refused", "spans_body"]

PROTOBUF = "application/x-protobuf"
TRACES, METRICS = "/v1/traces", "/v1/metrics"


class Endpoint:
    """A running OTLP endpoint and its client."""

    def __init__(self, url: str, metrics: Metrics) -> None:
        self.url = url
        self.client = httpx.Client(base_url=url, timeout=60)
        self.metrics = metrics

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, for a raw connection."""
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def head(self, length: int, path: str = TRACES) -> bytes:
        """Return the head of a request with a body of this length."""
        lines = (f"POST {path} HTTP/1.1", f"Host: {self.address[0]}", f"Content-Type: {PROTOBUF}", f"Content-Length: {length}")
        return "".join(f"{line}\r\n" for line in (*lines, "")).encode()

    def post(self, body: bytes, encoding: str = "", content_type: str | None = PROTOBUF, path: str = TRACES, **more: Any) -> httpx.Response:
        """Send a body to a path."""
        headers = {"content-encoding": encoding} if encoding else {}
        if content_type is not None:
            headers["content-type"] = content_type
        return self.client.post(path, content=body, headers=headers, **more)


@contextmanager
def endpoint_over(
    committer: Committer | StubCommitter, metrics: Metrics | None = None, ready: bool = True, **settings: Any
) -> Iterator[Endpoint]:
    """Serve the endpoint over a committer, with these settings."""
    metrics = metrics or Metrics()
    app = otlp_endpoint.create_app(load(**settings), cast(Committer, committer), metrics, lambda: ready)
    with served(app) as url:
        endpoint = Endpoint(url, metrics)
        yield endpoint
        endpoint.client.close()


class StubCommitter:
    """Returns the same receipt or error for every batch, or raises at once; ``wait`` delays it."""

    def __init__(self, answer: Receipt | Exception, raises: Exception | None = None, wait: threading.Event | None = None) -> None:
        self._answer, self._raises, self._wait = answer, raises, wait

    def submit(self, batch: Batch, entry: Entry | None = None) -> Future[Receipt]:
        """Stand in for ``Committer.submit``."""
        if self._raises:
            raise self._raises
        if self._wait:
            self._wait.wait(30)
        future: Future[Receipt] = Future()
        if isinstance(self._answer, Exception):
            future.set_exception(self._answer)
        else:
            future.set_result(self._answer)
        return future

    def finish(self, entry: Entry) -> None:
        """Stand in for ``Committer.finish``."""


def spans_body(spans: int = 1, bad: int = 0) -> ExportTraceServiceRequest:
    """Return a request with good spans, and some with an undecodable timeline."""
    body = request()
    for _ in range(spans):
        native_span(body)
    for _ in range(bad):
        native_span(body, {"legato.stream.timeline": b"\xff"})
    return body


def refused(reply: httpx.Response, status: int, code: int) -> Status:
    """Check that a reply is this error with a google.rpc.Status that has a message, and return the latter."""
    assert reply.status_code == status, (reply.status_code, reply.content)
    found = Status.FromString(reply.content) if reply.headers["content-type"] == PROTOBUF else Parse(reply.content, Status())
    assert found.code == code and found.message
    assert ("retry-after" in reply.headers) == (status in (429, 503))
    return cast(Status, found)


def accepted(reply: httpx.Response) -> ExportTraceServiceResponse:
    """Check that a reply is a 200 in protobuf, and return its message."""
    assert reply.status_code == 200, (reply.status_code, reply.content)
    assert reply.headers["content-type"] == PROTOBUF
    response: ExportTraceServiceResponse = ExportTraceServiceResponse.FromString(reply.content)
    return response
