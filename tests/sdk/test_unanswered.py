"""Requests for streams while their servers send no headers: in flight, reported as silent, and one row when the client gives up."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import MagicMock, patch

import aiohttp
import httpcore
import httpx
import openai
import pytest
import requests
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import legato
from helpers.servers.formats import formats_app
from helpers.servers.serving import served
from helpers.servers.waiting import until
from legato._clock import now_ns
from legato._request import SentRequest, is_callers_error
from legato._worker import Worker, worker

Spans = Callable[[], list[ReadableSpan]]
S = 1_000_000_000
EVENTS = {"content-type": "text/event-stream"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that accepts connections and never answers; with the instrumentations installed."""
    installs = (legato.instrument_httpx, legato.instrument_aiohttp, legato.instrument_requests)
    for install in installs:
        install()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1/messages"
    legato.uninstrument_httpx()
    legato.uninstrument_aiohttp()
    legato.uninstrument_requests()


def with_httpx(url: str, wait_s: float) -> None:
    """Ask with httpx."""
    with httpx.stream("POST", url, json={"model": "httpx", "stream": True}, timeout=wait_s):
        pass


def with_requests(url: str, wait_s: float) -> None:
    """Ask with requests."""
    requests.post(url, json={"model": "requests", "stream": True}, stream=True, timeout=wait_s)


def with_aiohttp(url: str, wait_s: float) -> None:
    """Ask with aiohttp."""

    async def ask() -> None:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=wait_s)) as session,
            session.post(url, json={"model": "aiohttp", "stream": True}),
        ):
            pass

    asyncio.run(ask())


def in_thread(ask: Callable[[str, float], None], url: str) -> threading.Thread:
    """Ask in a thread, which ends with the client's time-out."""

    def run() -> None:
        with pytest.raises((httpx.TimeoutException, requests.Timeout, asyncio.TimeoutError)):
            ask(url, 6)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_request_without_headers_is_in_flight_and_silent(url: str, exporter: InMemorySpanExporter, spans: Spans) -> None:
    """From its sending on; then it is one row, a time-out."""
    clients = {"httpx": with_httpx, "requests": with_requests, "aiohttp": with_aiohttp}
    threads = [in_thread(ask, url) for ask in clients.values()]
    expected = dict.fromkeys((("client", name) for name in clients), 1)
    until(lambda: expected.items() <= worker().in_flight().items(), 20)
    until(lambda: clients.keys() <= reported(exporter), 20)
    for thread in threads:
        thread.join(30)
    rows = {str((span.attributes or {})["gen_ai.request.model"]): dict(span.attributes or {}) for span in spans()}
    assert {name: (row["legato.stream.outcome"], row["legato.stream.chunks"]) for name, row in rows.items()} == dict.fromkeys(
        clients, ("timeout", 0)
    )
    assert expected.keys().isdisjoint(worker().in_flight())


def reported(exporter: InMemorySpanExporter) -> set[Any]:
    """Return the models of the streams that were reported as silent."""
    found = [span for span in exporter.get_finished_spans() if span.name == "legato.stream.silence"]
    return {(span.attributes or {}).get("gen_ai.request.model") for span in found}


class Waiting:
    """A request that asked for a stream, under a worker without a thread, by a clock that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, interval_ms: int = 10_000, content: bytes = b'{"model":"m","stream":true}') -> None:
        self.now = 0
        self.worker = Worker(interval_ms, lambda: self.now)
        monkeypatch.setattr(self.worker, "_start", lambda: None)
        monkeypatch.setattr("legato._stream.worker", lambda: self.worker)
        monkeypatch.setattr("legato._request.now_ns", lambda: self.now)
        self.sent = SentRequest("POST", "https", "models.example", 443, "/v1/messages", {"accept": "text/event-stream"}, content, 0)

    def until(self, second: int) -> None:
        """Let the time pass, with a tick each second."""
        while self.now < second * S:
            self.now += S
            self.worker.tick()

    def over(self) -> None:
        """Let the worker finish what has ended, and check that it keeps nothing."""
        self.worker.flush()
        self.until(self.now // S + 60)
        found = self.worker.stats()
        assert (found["live"], found["queued"], found["started"] - found["ended"]) == (0, 0, 0) and not self.worker.in_flight()


def named(exporter: InMemorySpanExporter) -> list[tuple[str, bool]]:
    """Return the spans: the last word of each name, and whether it ends a silence."""
    found = exporter.get_finished_spans()
    return [(span.name.split(".")[-1], bool((span.attributes or {}).get("legato.stream.resumed"))) for span in found]


@pytest.mark.parametrize(
    ("status", "headers", "is_read"),
    [(200, {"content-type": "application/json"}, False), (404, EVENTS, False), (200, EVENTS, True)],
    ids=["JSON", "404", "read by a hook"],
)
def test_a_late_answer_that_is_no_stream_has_no_row(
    exporter: InMemorySpanExporter, spans: Spans, monkeypatch: pytest.MonkeyPatch, status: int, headers: dict[str, str], is_read: bool
) -> None:
    """It had no snapshot, which would be a row, and the worker reports that its silence is over: nothing in the application's thread."""
    waiting = Waiting(monkeypatch)
    ignored = waiting.worker.stats()["ignored"]
    waiting.until(15)
    assert waiting.sent.answered(status, headers, is_read=is_read) is None
    assert named(exporter) == [("silence", False), ("silence", False)]
    waiting.over()
    assert named(exporter) == [("silence", False), ("silence", False), ("silence", True)]
    found = waiting.worker.stats()
    assert (found["silences"], found["ignored"] - ignored) == (3, 1)


@pytest.mark.parametrize("interval_ms", [10_000, 0])
def test_without_a_report_nothing_is_taken_back(
    exporter: InMemorySpanExporter, spans: Spans, monkeypatch: pytest.MonkeyPatch, interval_ms: int
) -> None:
    """A quick answer, and one for which reports are switched off."""
    waiting = Waiting(monkeypatch, interval_ms)
    waiting.until(60 if not interval_ms else 1)
    waiting.sent.answered(200, {})
    waiting.over()
    assert named(exporter) == []


def test_an_answer_that_cannot_be_understood_has_no_row(
    exporter: InMemorySpanExporter, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of an adapter without a status."""
    waiting = Waiting(monkeypatch)
    with pytest.raises(TypeError):
        waiting.sent.answered(None, {})  # type: ignore[arg-type]
    waiting.over()
    assert named(exporter) == []


@pytest.mark.parametrize("value", [None, 7], ids=["it raises", "a number"])
def test_a_propagator_that_fails_takes_only_the_trace_context(spans: Spans, monkeypatch: pytest.MonkeyPatch, value: object) -> None:
    """The stream is recorded, and the application's request goes on."""

    def fail(carrier: dict[str, object], **_: object) -> None:
        if value is None:
            raise ValueError
        carrier["traceparent"] = value

    monkeypatch.setattr("legato._context.propagate.inject", fail)
    monkeypatch.setattr("legato._errors.is_test", lambda: False)
    sent = SentRequest("POST", "https", "models.example", 443, "/v1/messages", {}, b'{"stream":true}', now_ns())
    assert sent.trace_headers() == {}
    sent.failed(TimeoutError())
    assert [(span.attributes or {})["legato.stream.outcome"] for span in spans()] == ["timeout"]


HOOKS: dict[str, Callable[[str], Any]] = {
    "httpx": lambda url: httpx.Client(event_hooks={"response": [httpx.Response.raise_for_status]}).send(
        httpx.Request("POST", url, json={"stream": True}), stream=True
    ),
    "requests": lambda url: requests.post(
        url, json={"stream": True}, stream=True, hooks={"response": lambda response, **_: response.raise_for_status()}, timeout=30
    ),
    "aiohttp": lambda url: asyncio.run(_raised_by_aiohttp(url)),
}


async def _raised_by_aiohttp(url: str) -> None:
    async with aiohttp.ClientSession(raise_for_status=True) as session, session.post(url, json={"stream": True}):
        pass


@pytest.mark.usefixtures("url")
@pytest.mark.parametrize("client", sorted(HOOKS))
def test_a_status_that_the_client_raises_is_a_status(spans: Spans, client: str) -> None:
    """One of the caller's errors has no row; the type of another is the status, as where the application raises it later."""
    with served(formats_app()) as base:
        for status in (400, 503):
            with pytest.raises((httpx.HTTPStatusError, requests.HTTPError, aiohttp.ClientResponseError)):
                HOOKS[client](f"{base}/anthropic?status={status}")
    assert [(span.attributes or {})["error.type"] for span in spans()] == ["http_503"]


def _with(headers: dict[str, str], url: str = "http://127.0.0.1:9/v1/chat/completions") -> Any:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        return client.chat.completions.create(model="m", messages=[], stream=True, extra_headers=headers)


@pytest.mark.parametrize(
    ("ask", "rows"),
    [
        (lambda url: _with({"x-name": "\u00e9"}), 0),
        (lambda url: _with({}, "host/v1"), 0),
        (lambda url: _with({}), 1),
        (lambda url: httpx.Client().send(httpx.Request("POST", url, json={"stream": True}, headers={"a": "b\nc"}), stream=True), 0),
        (lambda url: _with({"a": "b\nc"}, url), 0),
        (lambda url: with_httpx("ftp://host", 1), 0),
        (lambda url: with_requests("host/path", 1), 0),
        (lambda url: with_requests("htps://host", 1), 0),
        (lambda url: requests.post(url, json={"stream": True}, stream=True, proxies={"http": "http:///x"}, timeout=1), 0),
        (lambda url: with_requests("http://127.0.0.1:9", 9), 1),
        (lambda url: with_aiohttp("htps://host", 1), 0),
        (lambda url: with_aiohttp("ftp:/path", 1), 0),
        (lambda url: _with({}, "htps://host/v1"), 0),
        (lambda url: with_aiohttp("host/path", 1), 0),
        (lambda url: with_aiohttp("http://127.0.0.1:9", 9), 1),
    ],
)
def test_a_request_that_cannot_be_sent_has_no_row(url: str, spans: Spans, ask: Callable[[str], Any], rows: int) -> None:
    """A wrong header or URL is an error of the caller's; a server that is not there is none."""
    legato.instrument_openai()
    with pytest.raises(Exception):  # noqa: B017 - each library has other classes
        ask(url)
    legato.uninstrument_openai()
    assert [(span.attributes or {})["legato.stream.outcome"] for span in spans()] == ["upstream_error"] * rows


def _moved_by_httpx(url: str) -> None:
    with httpx.stream("POST", url, json={"stream": True}, follow_redirects=True):
        pass


MOVED: dict[str, Callable[[str], Any]] = {
    "httpx": _moved_by_httpx,
    "requests": lambda url: with_requests(url, 30),
    "aiohttp": lambda url: with_aiohttp(url, 30),
    "openai": lambda url: _with({}, url.rpartition("/chat")[0]),
}


@pytest.mark.usefixtures("url")
@pytest.mark.parametrize(
    ("client", "place"),
    [*((name, "ftp://host/x") for name in sorted(MOVED)), *((name, "http://[::1:9/x") for name in ("aiohttp", "httpx"))],
)
def test_a_redirect_to_a_wrong_address_is_a_row(spans: Spans, client: str, place: str) -> None:
    """It is the server's fault, and the request's own address is right."""

    async def moved(_: Request) -> Response:
        return Response(status_code=307, headers={"location": place})

    legato.instrument_openai()
    with served(formats_app(None, None, Route("/chat/completions", moved, methods=["POST"]))) as base, pytest.raises(Exception):  # noqa: B017
        MOVED[client](f"{base}/chat/completions")
    legato.uninstrument_openai()
    assert [(span.attributes or {})["legato.stream.outcome"] for span in spans()] == ["upstream_error"]


@pytest.mark.parametrize(
    ("error", "cause", "expected"),
    [
        (aiohttp.ClientResponseError(MagicMock(), (), status=400), None, True),
        (aiohttp.ClientResponseError(MagicMock(), (), status=400), aiohttp.http.HttpProcessingError(code=400), False),
        (ssl.SSLCertVerificationError("expired"), None, False),
        (requests.exceptions.InvalidHeader(), None, False),
        # As where a server of HTTP/2 sends frames that are wrong.
        (httpx.LocalProtocolError("a frame"), httpcore.LocalProtocolError("a frame"), False),
    ],
)
def test_an_error_of_the_servers_is_not_the_callers(error: BaseException, cause: BaseException | None, expected: bool) -> None:
    """aiohttp raises garbage with the status 400, requests raises a server's header as the caller's, and a certificate is a ValueError."""
    error.__cause__ = cause
    assert is_callers_error(error, "https") is expected


class Retrying(httpx.BaseTransport):
    """A transport that tries again, and then raises the error from itself."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Fail."""
        error = httpx.ConnectError("refused")
        raise error from error


async def _retried(request: Any, handler: Callable[[Any], Any]) -> Any:
    try:
        return await handler(request)
    except aiohttp.ClientError as error:
        raise error from error


async def _asked_again_by_aiohttp(url: str) -> None:
    async with aiohttp.ClientSession(middlewares=(_retried,)) as session, session.post(url, json={"model": "m", "stream": True}):
        pass


def _asked_again_by_openai(url: str) -> None:
    error = openai.APIConnectionError(request=MagicMock())
    error.__cause__ = TimeoutError()
    error.__cause__.__cause__ = error
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    with patch.object(client, "_prepare_options", side_effect=error):
        client.chat.completions.create(model="m", messages=[], stream=True)


AGAIN: dict[str, Callable[[str], Any]] = {
    "httpx": lambda url: httpx.Client(transport=Retrying()).send(httpx.Request("POST", url, json={"stream": True}), stream=True),
    "aiohttp": lambda url: asyncio.run(_asked_again_by_aiohttp(url)),
    "openai": _asked_again_by_openai,
}


@pytest.mark.usefixtures("url")
@pytest.mark.parametrize("client", sorted(AGAIN))
def test_an_error_that_is_its_own_cause_reaches_the_application(spans: Spans, client: str) -> None:
    """Retries raise an error from itself, or two from each other. The application hung."""
    legato.instrument_openai()
    with pytest.raises((httpx.ConnectError, aiohttp.ClientConnectorError, openai.APIConnectionError)):
        AGAIN[client]("http://127.0.0.1:9/v1/chat/completions")
    legato.uninstrument_openai()
    assert [(span.attributes or {})["legato.stream.outcome"] for span in spans()] == ["upstream_error"]


def test_an_error_that_cannot_be_examined_is_a_row(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    """The application gets its own error, not that of the examination."""
    monkeypatch.setattr("legato._errors.is_test", lambda: False)
    monkeypatch.setattr("legato._openai.is_callers_error", MagicMock(side_effect=KeyError))
    legato.instrument_openai()
    with pytest.raises(openai.APIConnectionError):
        _asked_again_by_openai("http://127.0.0.1:9/v1/chat/completions")
    legato.uninstrument_openai()
    assert [(span.attributes or {})["legato.stream.outcome"] for span in spans()] == ["upstream_error"]


def test_what_only_accepts_events_is_not_reported_before_its_headers(
    exporter: InMemorySpanExporter, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its response may be anything; a failure is a row."""
    waiting = Waiting(monkeypatch, content=b'{"model":"m","stream":false}')
    waiting.until(15)
    assert waiting.sent.answered(200, {"content-type": "application/json"}) is None
    waiting.over()
    assert named(exporter) == []


def test_a_sampler_that_drops_a_stream_drops_its_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a request, taken back, is ignored, and not lost."""
    waiting = Waiting(monkeypatch)
    waiting.sent._recorder.span = trace.NonRecordingSpan(trace.INVALID_SPAN_CONTEXT)  # type: ignore[union-attr]
    before = waiting.worker.stats()
    waiting.until(15)
    waiting.sent.answered(404, {})
    waiting.over()
    after = waiting.worker.stats()
    assert (after["ignored"] - before["ignored"], after["lost"] - before["lost"], after["silences"]) == (1, 0, 0)


def test_a_late_stream_is_one_row_from_its_request_on(
    exporter: InMemorySpanExporter, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its snapshots begin with its headers, and its chunks are read as its content type says."""
    waiting = Waiting(monkeypatch)
    waiting.until(31)
    recorder = waiting.sent.answered(200, EVENTS)
    assert recorder is not None and ("snapshot", False) not in named(exporter)
    waiting.until(32)
    assert named(exporter).count(("snapshot", False)) == 1
    event = b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}'
    recorder.read((33 * S, b"event: content_block_delta\n" + event + b"\n\n"))
    recorder.end(at_ns=34 * S)
    waiting.worker.flush()
    (row,) = [dict(span.attributes or {}) for span in exporter.get_finished_spans() if span.name == "chat m"]
    assert (row["legato.stream.ttfb"], row["gen_ai.response.time_to_first_chunk"], row["legato.stream.chunks"]) == (31, 33, 1)
