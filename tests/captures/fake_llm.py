"""A small HTTP server that streams like an LLM provider on a fixed schedule, and keeps the true time of each chunk.

It speaks OpenAI chat completions, OpenAI responses, Anthropic messages, Gemini and Ollama chat. It answers no request without `stream`,
except the list of models and Ollama's version. The schedule is in `Plan`; the text is the same in each run. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from captures import dialects

HEADERS_MS = 80
ROLE_MS = 120
FIRST_CONTENT_MS = 300
# A stream of this model has one chunk and no place in the truth: a client opens its connection and builds its types with it.
WARM_UP = "warm-up"


@dataclass(frozen=True)
class Plan:
    """The schedule of one stream: `chunks` pieces of content, `gap_ms` apart, and at most one longer pause."""

    chunks: int = 40
    gap_ms: float = 25
    stall_after: int | None = 20
    stall_ms: float = 725
    cut_after: int | None = None

    def offset_ms(self, index: int) -> float:
        """Return when the content chunk with this index (from 0) is sent, in ms after the request."""
        stalled = self.stall_after is not None and index >= self.stall_after
        return FIRST_CONTENT_MS + index * self.gap_ms + (self.stall_ms - self.gap_ms if stalled else 0)


PLANS = {
    "plain": Plan(),
    "nested": Plan(),
    "break": Plan(),
    "cut": Plan(cut_after=25),
    "long": Plan(chunks=300, gap_ms=5, stall_after=None),
    "tools": Plan(),
    "responses": Plan(),
    "concurrent": Plan(),
}


@dataclass
class Truth:
    """What one stream really was. All times are ns since 1970, taken just before the bytes are handed to the socket."""

    response_id: str
    model: str
    api: str
    request_start_ns: int
    headers_ns: int = 0
    role_ns: int = 0
    content_ns: list[int] = field(default_factory=list)
    end_ns: int = 0
    finish: str | None = None
    input_tokens: int = dialects.INPUT_TOKENS
    output_tokens: int = 0
    outcome: str = "open"
    traceparent: str | None = None

    def closed(self, outcome: str) -> None:
        """Note how and when the stream ended."""
        self.outcome, self.end_ns = outcome, time.time_ns()


class _Closed(Exception):
    """The client closed its connection."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeLLM

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_GET(self) -> None:
        self._json({"object": "list", "data": [], "models": [], "version": "0.30.0"})

    def do_POST(self) -> None:
        begin_ns = time.time_ns()
        request = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        name = next((name for path, name in dialects.PATHS.items() if self.path.split("?")[0].endswith(path)), None)
        if name == "gemini":
            request["model"] = self.path.rsplit("/", 1)[1].split(":")[0]
        elif name == "bedrock":
            request["model"] = self.path.split("/")[2]
        if name is None or (name not in ("ollama", "gemini", "bedrock") and not request.get("stream")):
            self._json({"error": {"message": f"the fake server streams only: {self.path}"}}, 404)
            return
        truth = Truth(self.server.next_id(name), str(request.get("model")), name, begin_ns, traceparent=self.headers.get("traceparent"))
        plan = self.server.plan
        if truth.model == WARM_UP:
            plan = Plan(chunks=1)
        else:
            self.server.truth.append(truth)
        try:
            self._stream(truth, plan, dialects.FRAMES[name](request, truth.response_id, plan.chunks))
            truth.closed("complete")
        except (_Closed, OSError):
            truth.closed("client_closed")
            self.close_connection = True
        except EOFError:
            truth.closed("cut")
            self.close_connection = True

    def _stream(self, truth: Truth, plan: Plan, frames: Iterator[dialects.Frame]) -> None:
        """Send the frames at their times. Raises EOFError at the planned cut, `_Closed` or OSError if the client left."""
        self._wait(truth, HEADERS_MS)
        truth.headers_ns = time.time_ns()
        self._head(dialects.CONTENT_TYPES.get(truth.api, "text/event-stream"), ("Transfer-Encoding", "chunked"))
        for frame in frames:
            if frame.kind == "role":
                self._wait(truth, ROLE_MS)
                truth.role_ns = truth.role_ns or time.time_ns()
            elif frame.kind == "content":
                if len(truth.content_ns) == plan.cut_after:
                    raise EOFError
                self._wait(truth, plan.offset_ms(len(truth.content_ns)))
                truth.content_ns.append(time.time_ns())
            elif frame.kind == "end":
                self._wait(truth, plan.offset_ms(plan.chunks))
                truth.finish, truth.output_tokens = frame.finish, plan.chunks
            self.wfile.write(b"%x\r\n%s\r\n" % (len(frame.data), frame.data))
        self.wfile.write(b"0\r\n\r\n")

    def _wait(self, truth: Truth, at_ms: float) -> None:
        """Sleep until `at_ms` after the request. A client that closes in the meantime ends the stream at once."""
        while (left_s := truth.request_start_ns / 1e9 + at_ms / 1e3 - time.time()) > 0:
            if _is_readable(self.connection, left_s) and not self.connection.recv(1, socket.MSG_PEEK):
                raise _Closed

    def _head(self, content_type: str, *headers: tuple[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in (("Content-Type", content_type), *headers):
            self.send_header(name, value)
        self.end_headers()

    def _json(self, value: object, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self._head("application/json", ("Content-Length", str(len(body))), status=status)
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the truth is the log."""


def _is_readable(connection: socket.socket, seconds: float) -> bool:
    """Wait until the connection can be read, or for so long. (`select` takes no descriptor above 1,023.)"""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


class FakeLLM(ThreadingHTTPServer):
    """The server. `plan` is the schedule of the next streams; `truth` has one entry a stream."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.plan = PLANS["plain"]
        self.truth: list[Truth] = []
        self._count = 0
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """The address without a path."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def next_id(self, dialect: str) -> str:
        """Return an id that no other stream of this run has, in the provider's form."""
        with self._lock:
            self._count += 1
            return f"{dialects.ID_PREFIXES[dialect]}{time.time_ns():x}{self._count:04d}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing if a client closed its idle connection; print all other errors."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def server_bind(self) -> None:
        """Bind without the look-up of the host's name that `HTTPServer` makes."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", int(self.server_address[1])


def main() -> None:
    """Serve until interrupted, then print the truth as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", choices=PLANS)
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    server = FakeLLM(arguments.port)
    server.plan = PLANS[arguments.scenario]
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print(json.dumps([asdict(each) for each in server.truth], indent=1))


if __name__ == "__main__":
    main()
