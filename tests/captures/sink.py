"""A receiver of OTLP over HTTP that keeps each request as it was sent and accepts all. It decodes nothing. Standard library only.

OTLP over gRPC arrives through `grpc_relay`, which posts each message here as protobuf and names the real transport in a header.
"""

from __future__ import annotations

import base64
import socketserver
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TRANSPORT_HEADER = "x-captured-transport"


@dataclass(frozen=True)
class Received:
    """One request of an exporter."""

    path: str
    content_type: str
    content_encoding: str
    body: bytes
    transport: str

    def as_json(self) -> dict[str, str]:
        """Return the entry of a capture file."""
        return {
            "path": self.path,
            "content_type": self.content_type,
            "content_encoding": self.content_encoding,
            "transport": self.transport,
            "body": base64.b64encode(self.body).decode(),
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Sink

    def do_GET(self) -> None:
        self._answer(b"{}", "application/json")

    def do_POST(self) -> None:
        content_type = self.headers.get("content-type", "")
        received = Received(
            self.path.split("?")[0],
            content_type,
            self.headers.get("content-encoding", ""),
            self._body(),
            self.headers.get(TRANSPORT_HEADER, "http"),
        )
        self.server.received.append(received)
        # An empty message of protobuf has no bytes: nothing was refused.
        self._answer(b"{}" if "json" in content_type else b"", content_type or "application/x-protobuf")

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, body: bytes, content_type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


class Sink(ThreadingHTTPServer):
    """The receiver. `received` has the requests in order."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.received: list[Received] = []

    @property
    def url(self) -> str:
        """The address without a path."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def server_bind(self) -> None:
        """Bind without the look-up of the host's name that `HTTPServer` makes."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", int(self.server_address[1])
