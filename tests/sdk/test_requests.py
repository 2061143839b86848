"""`instrument_requests` with a real client and a real server."""

from __future__ import annotations

import gc
import io
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
import urllib3
from opentelemetry.sdk.trace import ReadableSpan
from requests.adapters import BaseAdapter

import legato
from helpers.builders.formats import WORDS
from helpers.servers.formats import formats_app
from helpers.servers.serving import served

Spans = Callable[[], list[ReadableSpan]]
Columns = Callable[[ReadableSpan], dict[str, Any]]
CONTENT = sum(len(word.encode()) for word in WORDS)
seen: list[dict[str, str]] = []


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of every format, with the instrumentation installed."""
    legato.instrument_requests()
    legato.instrument_requests()
    with served(formats_app(None, seen)) as base:
        yield base
    legato.uninstrument_requests()


def ask(base: str, path: str, **more: Any) -> requests.Response:
    """Ask for a stream."""
    return requests.post(f"{base}/{path}", json={"model": "asked", "stream": True}, stream=True, timeout=(10, 1.5), **more)


def of(spans: list[ReadableSpan]) -> dict[str, Any]:
    """Return the attributes of the only span."""
    (span,) = spans
    return dict(span.attributes or {})


@pytest.mark.parametrize("path", ["anthropic", "openai-chat?gzip", "ollama", "ai-sdk-data"])
def test_streams(url: str, spans: Spans, columns: Columns, path: str) -> None:
    """Lines, compressed or not; the trace context; and one row if the lines are wrapped, too."""
    lines = list(legato.wrap(ask(url, path).iter_lines(chunk_size=1)))
    (span,) = spans()
    found = of([span])
    assert len(lines) >= len(WORDS) and sum(columns(span)["sizes"]) == CONTENT
    assert (found["legato.stream.outcome"], found["gen_ai.request.model"], found["legato.stream.transport"]) == (
        "complete",
        "asked",
        "http/1.1",
    )
    assert span.context is not None and f"{span.context.span_id:016x}" in seen[-1]["traceparent"]


@pytest.mark.parametrize(
    ("path", "outcome", "error"),
    [
        ("anthropic?cut", "upstream_error", "stream_truncated"),
        ("anthropic?break", "upstream_error", "urllib3.exceptions.ProtocolError"),
        ("anthropic?pause=4", "timeout", "urllib3.exceptions.ReadTimeoutError"),
        ("anthropic?status=500", "upstream_error", "http_500"),
    ],
)
def test_failures(url: str, spans: Spans, path: str, outcome: str, error: str) -> None:
    """The error's type is that of the layer that noticed it."""
    try:
        list(ask(url, path).iter_content(None))
    except requests.RequestException:
        assert "http" not in error
    assert (of(spans())["legato.stream.outcome"], of(spans())["error.type"]) == (outcome, error)


def test_a_request_that_is_sent_again_carries_its_own_trace(url: str, spans: Spans) -> None:
    """Not that of the first stream, which the request would keep."""
    with requests.Session() as session:
        request = session.prepare_request(requests.Request("POST", f"{url}/anthropic", json={"stream": True}))
        sent = []
        for _ in range(2):
            assert session.send(request, stream=True).content
            sent.append(seen[-1]["traceparent"])
    assert [f"{span.context.span_id:016x}" in given for span, given in zip(spans(), sent, strict=True) if span.context] == [True, True]


def test_leaving_and_no_stream(url: str, spans: Spans) -> None:
    """Closing early is a cancel; a response that is not streamed has no row, nor has any without the instrumentation."""
    with ask(url, "anthropic?pause=1") as response:
        next(response.iter_content(None))
    requests.post(f"{url}/anthropic", timeout=60)
    assert ask(url, "anthropic", hooks={"response": lambda response, **_: response.content and None}).content, "read by a hook"
    legato.uninstrument_requests()
    list(ask(url, "anthropic").iter_content(None))
    legato.instrument_requests()
    assert of(spans())["legato.stream.outcome"] == "client_cancel"


def test_the_body_alone_has_all_of_the_stream(url: str, spans: Spans, columns: Columns) -> None:
    """Where nothing else has the response or its body when it is read; the body is one of urllib3, and makes others."""
    # Not within `assert`: pytest keeps what is between.
    parts = list(ask(url, "anthropic").raw.stream(64))
    (span,) = spans()
    assert len(b"".join(parts)) > CONTENT
    assert of([span])["legato.stream.outcome"] == "complete" and sum(columns(span)["sizes"]) == CONTENT
    with ask(url, "anthropic?pause=1") as response:
        assert isinstance(response.raw, urllib3.HTTPResponse) and type(response.raw).__name__ == "HTTPResponse"
        assert list(type(response.raw)(io.BytesIO(b"own"), preload_content=False).stream()) == [b"own"]


RAW: dict[str, Callable[[Any], object]] = {
    "stream": lambda raw: list(raw.stream(64)),
    "stream as it is": lambda raw: list(raw.stream(64, False)),
    "stream decompressed": lambda raw: list(raw.stream(64, decode_content=True)),
    "read": lambda raw: list(iter(lambda: raw.read(64), b"")),
    "read1": lambda raw: list(iter(lambda: raw.read1(64), b"")),
    "read at once": lambda raw: raw.read(),
    "read into": lambda raw: io.BufferedReader(raw).read(),
    "chunks": lambda raw: list(raw.read_chunked()),
    "lines": list,
}


@pytest.mark.parametrize("path", ["anthropic", "anthropic?gzip"])
@pytest.mark.parametrize("way", sorted(RAW))
def test_every_way_to_read_the_body(url: str, spans: Spans, columns: Columns, path: str, way: str) -> None:
    """Also as it is on the wire, which proxies pass on: compressed."""
    with ask(url, path) as response:
        RAW[way](response.raw)
    (span,) = spans()
    assert of([span])["legato.stream.outcome"] == "complete" and sum(columns(span)["sizes"]) == CONTENT


def test_a_read_that_fails_or_is_the_last(url: str, spans: Spans) -> None:
    """The error's type is that of the layer that noticed it; who stops before the end has cancelled."""
    with ask(url, "anthropic?break") as response, pytest.raises(urllib3.exceptions.ProtocolError):
        response.raw.read()
    with ask(url, "anthropic?pause=1") as response:
        assert response.raw.read(0) == b"" and response.raw.read(1)
    found = [span.attributes or {} for span in spans()]
    assert [each["legato.stream.outcome"] for each in found] == ["upstream_error", "client_cancel"]
    assert found[0]["error.type"] == "urllib3.exceptions.ProtocolError"


def test_a_response_that_is_dropped_is_freed_at_once(url: str, spans: Spans) -> None:
    """Its connection does not wait for the garbage collector; read or not, a stream with more to come was cancelled."""
    gc.disable()
    try:
        for is_read in (True, False):
            response = ask(url, "anthropic?pause=1")
            if is_read:
                next(response.iter_content(None))
            body = weakref.ref(response.raw)
            del response
            assert body() is None
    finally:
        gc.enable()
    assert [span.attributes and span.attributes["legato.stream.outcome"] for span in spans()] == ["client_cancel"] * 2


class OnlyRead:
    """A body that only has ``read``."""

    def __init__(self) -> None:
        self._parts = [b"data: {}\n\n", b"data: [DONE]\n\n"]

    def read(self, _: int) -> bytes:
        """Return the next part."""
        return self._parts.pop(0) if self._parts else b""


class Proxy:
    """A body with the methods of another object."""

    def __init__(self) -> None:
        self.below = urllib3.HTTPResponse(io.BytesIO(b"data: [DONE]\n\n"), preload_content=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)


class Slots:
    """A body without room for an attribute."""

    __slots__ = ()

    def stream(self, _: int, decode_content: bool) -> Iterator[bytes]:
        """Yield the only part."""
        assert decode_content
        yield b"data: [DONE]\n\n"


def with_its_own_stream() -> Any:
    """Return a body on which another tool has replaced ``stream``."""
    body = urllib3.HTTPResponse(io.BytesIO(b"data: other\n\n"), preload_content=False)
    body.stream = lambda *_, **__: iter([b"data: replaced\n\n"])  # type: ignore[method-assign, assignment]
    return body


class Adapter(BaseAdapter):
    """A transport of the application, with other bodies than those of urllib3."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self._make = make

    def send(self, request: Any, *_: Any, **__: Any) -> requests.Response:
        """Answer with a stream."""
        response = requests.Response()
        response.status_code, response.request, response.url = 200, request, request.url
        response.headers["content-type"] = "text/event-stream"
        response.raw = self._make()
        return response

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("make", [OnlyRead, Proxy, Slots, with_its_own_stream])
def test_a_body_that_cannot_be_recorded_is_left_as_it_is(url: str, spans: Spans, make: Callable[[], Any]) -> None:
    """The application reads what it reads without the instrumentation, and there is no row of a stream without chunks."""
    read = []
    for undo in (legato.uninstrument_requests, legato.instrument_requests):
        undo()
        session = requests.Session()
        session.mount("http://", Adapter(make))
        read.append(list(session.post(f"{url}/anthropic", json={"stream": True}, stream=True).iter_content(64)))
    assert read[0] == read[1] != [] and spans() == []
