"""A trace backend: it keeps spans by their ids, answers as asked, and calls a function before each reply."""

from __future__ import annotations

import contextlib
import gzip
import http.server
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from helpers.servers.http_server import serve_handler

__all__ = ["Answer", "TraceBackend", "trace_backend"]


@dataclass(frozen=True)
class Answer:
    """One reply. A request that is answered with 200 is kept."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""


@dataclass
class TraceBackend:
    """The URL, the replies to come (afterwards always 200), and the bodies and headers of the requests that were accepted.

    ``rule`` gets the spans of each request and may answer it before all others.
    """

    url: str = ""
    answers: deque[Answer] = field(default_factory=deque)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    requests: int = 0
    before_reply: Callable[[], None] = lambda: None
    rule: Callable[[list[Span]], Answer | None] = lambda spans: None

    @property
    def copies(self) -> list[Span]:
        """All spans in the order of their arrival, repeated ones included."""
        return [span for body in self.bodies for span in _spans_in(body)]

    @property
    def spans(self) -> dict[bytes, Span]:
        """The spans by id. Fails if two spans with one id differ, because a backend would keep both."""
        found: dict[bytes, Span] = {}
        for span in self.copies:
            assert found.setdefault(span.span_id, span) == span
        return found


def _spans_in(body: bytes) -> list[Span]:
    request = ExportTraceServiceRequest.FromString(body)
    return [span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans]


@contextlib.contextmanager
def trace_backend() -> Iterator[TraceBackend]:
    """Run a backend on a free port."""
    backend = TraceBackend()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = gzip.decompress(self.rfile.read(int(self.headers["Content-Length"])))
            backend.requests += 1
            answer = backend.rule(_spans_in(body)) or (backend.answers.popleft() if backend.answers else Answer())
            if answer.status == 200:
                assert self.path == "/v1/traces" and self.headers["Content-Encoding"] == "gzip"
                backend.bodies.append(body)
                backend.headers.append(dict(self.headers))
            backend.before_reply()
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(len(answer.content)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.content)

        def handle(self) -> None:
            # A client that was killed.
            with contextlib.suppress(ConnectionError):
                super().handle()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with serve_handler(Handler) as url:
        backend.url = url
        yield backend
