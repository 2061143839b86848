"""`StreamMiddleware` behind a real server: streams of every format on any route, one trace, and no false errors."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket

import legato
from helpers.builders.completions import completions_server
from helpers.builders.formats import FORMATS, WORDS
from helpers.servers.formats import formats_app
from helpers.servers.serving import served
from legato._body import Body
from legato._recorder import Origin, StreamRecorder
from legato._spans import start_span
from legato._worker import Worker
from legato.asgi import StreamMiddleware

Spans = Callable[[], list[ReadableSpan]]
Columns = Callable[[ReadableSpan], dict[str, Any]]
CONTENT = sum(len(word.encode()) for word in WORDS)
SCRIPT = """
from legato._route import current_route
from legato.asgi import StreamMiddleware
StreamMiddleware(None)
print(current_route().name)
"""


@pytest.mark.parametrize(
    ("environ", "configured"),
    [
        ({}, "NOWHERE"),
        ({"LEGATO_ENDPOINT": "http://127.0.0.1:9"}, "OWN"),
        ({"LEGATO_ENDPOINT": "http://127.0.0.1:9", "LEGATO_DISABLED": "1"}, "DISABLED"),
    ],
)
def test_it_configures_the_export_if_an_endpoint_is_set(environ: dict[str, str], configured: str) -> None:
    """With LEGATO_ENDPOINT set the middleware configures the process; without it, or when disabled, it does not."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"PATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **environ},
        check=True,
        capture_output=True,
        text=True,
    )
    assert result.stdout.strip() == configured


async def events(*given: str) -> AsyncIterator[str]:
    """Yield these server-sent events."""
    for each in given:
        yield f"data: {each}\n\n"


async def calls(request: Request) -> Response:
    """Answer as a server of tools does."""
    return StreamingResponse(events('{"jsonrpc":"2.0","id":1,"result":{}}'), media_type="text/event-stream")


async def page(request: Request) -> Response:
    """Answer in one part."""
    return PlainTextResponse("a page of text")


async def chat(socket: WebSocket) -> None:
    """Answer each message with words, or with one."""
    await socket.accept()
    async for question in socket.iter_text():
        for word in WORDS if question == "many" else WORDS[:1]:
            await socket.send_text(word)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with the middleware and its defaults, which also passes on what a provider streams."""
    with completions_server() as provider:
        legato.instrument_openai()

        async def passed_on(request: Request) -> Response:
            client = openai.AsyncOpenAI(base_url=provider, api_key="none", max_retries=0, timeout=60)
            stream = await client.chat.completions.create(model="normal", messages=[], stream=True)

            async def frames() -> AsyncIterator[str]:
                async with client:
                    async for chunk in stream:
                        yield f"data: {chunk.model_dump_json()}\n\n"

            return StreamingResponse(frames(), media_type="text/event-stream")

        more = [
            Route("/calls", calls, methods=["POST"]),
            Route("/page", page, methods=["POST"]),
            Route("/passed", passed_on, methods=["POST"]),
        ]
        with served(StreamMiddleware(formats_app(None, None, *more))) as base:
            yield base
        legato.uninstrument_openai()


def arrived(spans: Spans, count: int = 1) -> list[ReadableSpan]:
    """Return the spans once there are so many: a server ends a stream after its client has read it."""
    deadline = time.monotonic() + 10
    while len(found := spans()) < count and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def of(spans: list[ReadableSpan]) -> dict[str, Any]:
    """Return the attributes of the only span."""
    (span,) = spans
    return dict(span.attributes or {})


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_on_its_own_route(url: str, spans: Spans, columns: Columns, name: str) -> None:
    """Complete, with the content measured; the provider, model and id are those of the events."""
    assert httpx.post(f"{url}/{name}").status_code == 200
    (span,) = arrived(spans)
    found, chunks = of([span]), columns(span)
    model, response_id, _, _, tokens, provider = FORMATS[name].found
    assert (found["legato.stream.outcome"], found["legato.stream.vantage"], found["http.route"]) == ("complete", "server", f"/{name}")
    assert sum(chunks["sizes"]) == CONTENT and len(chunks["sizes"]) == len(FORMATS[name].events)
    given = (found.get("gen_ai.request.model", ""), found.get("gen_ai.response.id", ""), found.get("gen_ai.provider.name", ""))
    assert given == (model, response_id, provider) and found.get("gen_ai.usage.output_tokens") == tokens
    assert span.end_time is not None and span.start_time is not None


@pytest.mark.parametrize("name", ["anthropic", "own-text", "ai-sdk-ui", "ollama"])
def test_compressed_below_the_middleware(url: str, spans: Spans, columns: Columns, name: str) -> None:
    """As plain: the events are those of the decompressed body, the bytes on the wire those of the compressed one."""
    body = httpx.post(f"{url}/{name}?gzip")
    (span,) = arrived(spans)
    assert of([span])["legato.stream.outcome"] == "complete" and sum(columns(span)["sizes"]) == CONTENT
    assert of([span])["legato.stream.wire_bytes"] == int(body.num_bytes_downloaded)


@pytest.mark.parametrize(("name", "error"), [("anthropic", "stream_truncated"), ("own-json", None), ("own-text", None)])
def test_paths_that_are_named_have_no_false_errors(spans: Spans, name: str, error: str | None) -> None:
    """A body without an end mark is an error only in a format that has one."""
    with served(StreamMiddleware(formats_app(), paths=(f"/{name}",))) as base:
        httpx.post(f"{base}/{name}?cut")
        httpx.post(f"{base}/openai-chat")
    assert of(arrived(spans)).get("error.type") == error


def test_plain_text_and_what_is_no_stream(url: str, spans: Spans, columns: Columns) -> None:
    """Text in several parts is a stream; a page is not, nor are the calls of tools and the notifications of a GET request."""
    httpx.post(f"{url}/words")
    for path in ("page", "calls"):
        assert httpx.post(f"{url}/{path}").status_code == 200
    for path in ("own-text", "own-json", "words"):
        assert httpx.get(f"{url}/{path}").status_code == 200
    (span,) = arrived(spans)
    chunks = columns(span)
    assert sum(chunks["sizes"]) == CONTENT and len(chunks["sizes"]) == len(WORDS)
    assert of([span])["legato.stream.ttfb"] <= of([span])["gen_ai.response.time_to_first_chunk"]


def test_a_known_format_is_kept_for_a_get_request(url: str, spans: Spans) -> None:
    """A page's EventSource can send nothing else."""
    httpx.get(f"{url}/anthropic")
    assert of(arrived(spans))["gen_ai.provider.name"] == "anthropic"


def test_a_client_that_leaves_is_a_cancel_and_a_provider_that_breaks_an_error(url: str, spans: Spans) -> None:
    """The outcome comes from how the request ended."""
    with httpx.stream("POST", f"{url}/anthropic?pause=1") as response:
        next(response.iter_raw())
    left = arrived(spans)
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"{url}/anthropic?break")
    assert of(left)["legato.stream.outcome"] == "client_cancel"
    assert (arrived(spans, 2)[-1].attributes or {})["legato.stream.outcome"] == "upstream_error"


@pytest.mark.parametrize(
    "event", ["data: text\n\n", 'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"t"}}]}\n\n']
)
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("the client leaves", ("client_cancel", None)),
        ("the client leaves, and a middleware ends the response", ("client_cancel", None)),
        ("the client leaves, and the server cancels", ("client_cancel", None)),
        ("the server stops", ("upstream_error", "server_cancelled")),
    ],
)
def test_a_client_that_leaves_and_a_server_that_stops(spans: Spans, event: str, end: str, expected: tuple[str, str | None]) -> None:
    """Starlette's `BaseHTTPMiddleware` sends an empty last part to a client that has left. A server that stops cancels its requests.

    Daphne cancels an application that does not read that its client has left.
    """
    messages = [{"type": "http.request"}, {"type": "http.disconnect"}][: 1 if end == "the server stops" else 2]
    queue = asyncio.Queue[dict[str, str]]()
    for message in messages:
        queue.put_nowait(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
        if end.endswith(("stops", "cancels")):
            raise asyncio.CancelledError
        assert [(await receive())["type"] for _ in messages][-1] == "http.disconnect"
        if "middleware" in end:
            await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None:
        """Send nothing."""

    scope = {"type": "http", "path": "/chat", "method": "POST", "headers": []}
    is_read = True
    try:
        asyncio.run(StreamMiddleware(app)(scope, queue.get, send))
    except asyncio.CancelledError:
        is_read = False
    assert [queue.get_nowait() for _ in range(queue.qsize())] == ([] if is_read else messages)
    found = of(spans())
    assert (found["legato.stream.outcome"], found.get("error.type")) == expected


def test_a_server_that_streams_from_a_provider_has_one_trace(url: str, spans: Spans) -> None:
    """The client's stream is a child of the server's, also without a trace from outside; the current span is left alone."""
    httpx.post(f"{url}/passed")
    client, server = sorted(arrived(spans, 2), key=lambda span: str((span.attributes or {})["legato.stream.vantage"]))
    assert client.context is not None and server.context is not None and client.parent is not None
    assert client.context.trace_id == server.context.trace_id and client.parent.span_id == server.context.span_id
    assert server.parent is None and (server.attributes or {})["legato.stream.outcome"] == "complete"


def test_answers_over_a_websocket(spans: Spans, columns: Columns) -> None:
    """A stream for each answer of several messages, from the question to the last of them; none without a named path."""
    for paths in (("/ws",), None):
        app = StreamMiddleware(formats_app(None, None, WebSocketRoute("/ws", chat)), paths=paths)
        with TestClient(app) as client, client.websocket_connect("/ws") as socket:
            for question, answers in (("many", 5), ("one", 1), ("many", 5)):
                socket.send_text(question)
                assert [socket.receive_text() for _ in range(answers)] == WORDS[:answers]
    found = arrived(spans, 2)
    assert [(span.attributes or {})["legato.stream.outcome"] for span in found] == ["complete"] * 2
    assert [columns(span)["sizes"] for span in found] == [[len(word.encode()) for word in WORDS]] * 2
    assert {(span.attributes or {})["legato.stream.transport"] for span in found} == {"websocket"}


def test_an_unknown_stream_of_a_get_request_is_not_reported_while_it_runs(spans: Spans) -> None:
    """No snapshot and no silence of what may be notifications; the same stream in a known format has its snapshot."""
    now = [0]
    worker = Worker(1_000, lambda: now[0])
    worker._start = lambda: None  # type: ignore[method-assign]
    for name in ("own-text", "anthropic"):
        now[0] = 0
        origin = Origin(model=name)
        recorder = StreamRecorder(origin, start_span(origin, 0), 0, worker._complete, body=Body("text/event-stream"))
        recorder.provisional = True
        worker.watch(recorder)
        for event in (*FORMATS[name].prelude, *FORMATS[name].words):
            recorder.read((1, event))
        now[0] = 40_000_000_000
        worker.tick()
        recorder.end()
    assert [span.name for span in spans()] == ["legato.stream.snapshot", "chat anthropic"]
