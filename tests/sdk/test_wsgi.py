"""The WSGI middleware behind a server of the standard library: streams, cancels, errors, the trace, and what is no stream."""

from __future__ import annotations

import contextlib
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan

import legato
from helpers.builders.formats import FORMATS, WORDS
from legato.wsgi import StreamMiddleware

Spans = Callable[[], list[ReadableSpan]]
Columns = Callable[[ReadableSpan], dict[str, Any]]
CONTENT = sum(len(word.encode()) for word in WORDS)
has_left = threading.Event()


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
    """Stream the format that the path names; `/page` is no stream. With `+inner` also read a stream, with `+left` wait for ``has_left``."""
    path, _, extra = environ["PATH_INFO"][1:].partition("+")
    if path == "page":
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "4")])
        yield b"page"
        return
    kind = FORMATS[path].content_type if path in FORMATS else "text/plain"
    start_response("200 OK", [("Content-Type", kind)])
    for event in FORMATS[path].events if path in FORMATS else [word.encode() for word in WORDS]:
        yield event
        if extra == "left":
            assert has_left.wait(60)
        time.sleep(0.05 if extra == "left" else 0.005)
        if extra == "inner":
            extra = ""
            list(legato.wrap(["a"], model="inner"))
        if extra == "fail":
            raise ValueError("a fault of the application")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with the middleware and its defaults."""
    with make_server("127.0.0.1", 0, StreamMiddleware(application), _Server, _Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(10)


def arrived(spans: Spans, count: int = 1) -> list[dict[str, Any]]:
    """Return the attributes of the spans once there are so many."""
    deadline = time.monotonic() + 10
    while len(found := spans()) < count and time.monotonic() < deadline:
        time.sleep(0.02)
    return [dict(span.attributes or {}) for span in found]


@pytest.mark.parametrize("name", ["openai-chat", "anthropic", "ollama", "own-text", "words"])
def test_streams_are_recorded(url: str, spans: Spans, columns: Columns, name: str) -> None:
    """Complete, with the content of the events and the vantage. The path is none of the usual ones, so the route is unknown."""
    httpx.post(f"{url}/{name}")
    (found,) = arrived(spans)
    assert (found["legato.stream.outcome"], found.get("http.route"), found["legato.stream.vantage"]) == ("complete", None, "server")
    assert sum(columns(spans()[0])["sizes"]) == CONTENT and found["server.port"] > 0


def test_ends(url: str, spans: Spans, capfd: pytest.CaptureFixture[str]) -> None:
    """A client that leaves is a cancel, a fault of the application an error."""
    with httpx.stream("POST", f"{url}/anthropic+left") as response:
        next(response.iter_raw())
    has_left.set()
    assert [each["legato.stream.outcome"] for each in arrived(spans)] == ["client_cancel"]
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(f"{url}/anthropic+fail")
    assert arrived(spans, 2)[1]["error.type"] == "builtins.ValueError"
    capfd.readouterr()


def test_a_page_and_notifications_have_no_row(url: str, spans: Spans) -> None:
    """As behind ASGI."""
    assert httpx.post(f"{url}/page").text == "page"
    httpx.get(f"{url}/own-text")
    httpx.post(f"{url}/ollama")
    (found,) = arrived(spans)
    assert found["gen_ai.provider.name"] == "ollama"


def test_one_trace(url: str, spans: Spans) -> None:
    """From the client's trace context to a stream that the application reads while it answers."""
    httpx.post(f"{url}/own-text+inner", headers={"traceparent": f"00-{7:032x}-{9:016x}-01"})
    arrived(spans, 2)
    inner, server = sorted(spans(), key=lambda span: span.name, reverse=True)
    assert inner.name == "chat inner" and inner.parent is not None and server.context is not None and server.parent is not None
    assert inner.parent.span_id == server.context.span_id and server.parent.span_id == 9
    assert inner.parent.trace_id == server.parent.trace_id == 7


def test_a_body_that_is_no_stream_stays_what_it_is() -> None:
    """Servers send lists and files in faster ways if they recognise them."""
    body = [b"page"]

    def page(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/html")])
        return body

    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/"}
    assert StreamMiddleware(page)(environ, lambda *_: None) is body
