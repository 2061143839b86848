"""`instrument_aiohttp` with a real client and a real server: every way to read, ends, failures, the trace."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import pytest
from opentelemetry.sdk.trace import ReadableSpan

import legato
from helpers.builders.formats import WORDS
from helpers.servers.formats import formats_app
from helpers.servers.serving import served
from legato._aiohttp import _RecordedContent

Spans = Callable[[], list[ReadableSpan]]
Columns = Callable[[ReadableSpan], dict[str, Any]]
CONTENT = sum(len(word.encode()) for word in WORDS)
seen: list[dict[str, str]] = []
has_read = threading.Event()


def in_step(app: Any) -> Any:
    """Return the application; with ``?step`` it sends the second part of its body when the client has read the first."""

    async def stepping(scope: Any, receive: Any, send: Any) -> None:
        parts = 0

        async def sent(message: Any) -> None:
            nonlocal parts
            parts += message["type"] == "http.response.body"
            if parts == 2 and b"step" in scope["query_string"]:
                assert await asyncio.to_thread(has_read.wait, 20)
            await send(message)

        await app(scope, receive, sent)

    return stepping


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of every format, with the instrumentation installed."""
    legato.instrument_aiohttp()
    legato.instrument_aiohttp()
    with served(in_step(formats_app(None, seen))) as base:
        yield base
    legato.uninstrument_aiohttp()


def of(spans: list[ReadableSpan]) -> dict[str, Any]:
    """Return the attributes of the only span."""
    (span,) = spans
    return dict(span.attributes or {})


def ask(base: str, path: str, read: Callable[[Any], Awaitable[Any]], method: str = "POST", **more: Any) -> None:
    """Ask for a stream and read it."""

    async def run() -> None:
        async with aiohttp.ClientSession() as session:
            async with session.request(method, f"{base}/{path}", json={"model": "asked", "stream": True}, **more) as response:
                await read(response)

    asyncio.run(run())


async def by_line(response: Any) -> None:
    """Iterate over the lines."""
    assert len([line async for line in response.content]) > len(WORDS)


async def by_part(response: Any) -> None:
    """Iterate over what arrives."""
    assert [part async for part in response.content.iter_any()]


async def by_size(response: Any) -> None:
    """Iterate over parts of a size."""
    assert [part async for part in response.content.iter_chunked(7)]


async def by_chunk(response: Any) -> None:
    """Iterate over the chunks of HTTP."""
    assert [part async for part, _ in response.content.iter_chunks()]


async def at_once(response: Any) -> None:
    """Read the whole text."""
    assert "crossing" in await response.text()


@pytest.mark.parametrize("by_session", [True, False])
def test_a_body_that_is_passed_on_compressed(url: str, spans: Spans, columns: Columns, by_session: bool) -> None:
    """As a proxy does: the session or the request says that it is not to be decompressed."""

    async def run() -> None:
        async with (
            aiohttp.ClientSession(auto_decompress=not by_session) as session,
            session.post(f"{url}/anthropic?gzip", json={"stream": True}, auto_decompress=None if by_session else False) as response,
        ):
            await by_part(response)

    asyncio.run(run())
    (span,) = spans()
    assert of([span])["legato.stream.outcome"] == "complete" and sum(columns(span)["sizes"]) == CONTENT


@pytest.mark.parametrize("read", [by_line, by_part, by_size, by_chunk, at_once])
@pytest.mark.parametrize("path", ["anthropic?step", "ollama?gzip&step"])
def test_every_way_to_read(
    url: str, spans: Spans, columns: Columns, monkeypatch: pytest.MonkeyPatch, path: str, read: Callable[[Any], Awaitable[Any]]
) -> None:
    """The content, its times, the request's model and the connection; one row, also if the body is read at once."""
    received = _RecordedContent._received

    def noted(content: _RecordedContent, found: Any, requested: int) -> Any:
        result = received(content, found, requested)
        has_read.set()
        return result

    monkeypatch.setattr(_RecordedContent, "_received", noted)
    has_read.clear()
    ask(url, path, read)
    (span,) = spans()
    found, chunks = of([span]), columns(span)
    assert (found["legato.stream.outcome"], found["gen_ai.request.model"]) == ("complete", "asked")
    assert sum(chunks["sizes"]) == CONTENT and len(set(chunks["times_us"])) > 1
    assert found["legato.stream.ttfb"] <= found["gen_ai.server.ttft"] and found["server.address"] == "127.0.0.1"


@pytest.mark.parametrize("name", ["__aiter__", "iter_any", "iter_chunked", "iter_chunks"])
def test_a_read_that_timed_out_is_asked_for_again(url: str, spans: Spans, columns: Columns, name: str) -> None:
    """As with aiohttp's own iterators, all of the stream follows. The time in which the application waited is no hold."""
    timeouts = 0

    async def with_signs_of_life(response: Any) -> None:
        nonlocal timeouts
        iterator = getattr(response.content, name)(*[16] * (name == "iter_chunked"))
        while True:
            try:
                await asyncio.wait_for(iterator.__anext__(), 0.2)
            except TimeoutError:
                timeouts += 1
                if timeouts >= 3:
                    has_read.set()
            except StopAsyncIteration:
                return

    has_read.clear()
    ask(url, "anthropic?step", with_signs_of_life)
    (span,) = spans()
    chunks = columns(span)
    assert of([span])["legato.stream.outcome"] == "complete" and sum(chunks["sizes"]) == CONTENT
    assert timeouts >= 3 and sum(chunks["holds"] or [0]) * 0.064 < 600


@pytest.mark.parametrize("read", [lambda content: content, lambda content: content.iter_any()])
def test_what_is_wrapped_too_has_one_row(url: str, spans: Spans, read: Callable[[Any], Any]) -> None:
    """The reader and its iterators are known to `legato.wrap`."""

    async def wrapped(response: Any) -> None:
        assert [part async for part in legato.wrap(read(response.content))]

    ask(url, "anthropic", wrapped)
    assert of(spans())["legato.stream.outcome"] == "complete"


async def by_name(response: Any) -> None:
    """Call each method with the names that aiohttp's parameters have, then read the rest without waiting."""
    content = response.content
    assert isinstance(content, aiohttp.StreamReader)
    assert len(await content.readexactly(n=3)) == 3 and len(await content.read(n=4)) <= 4
    assert await content.readuntil(separator=b"\n") and await content.readline()
    assert await anext(aiter(content.iter_chunked(n=8)))
    await content.wait_eof()
    assert content.read_nowait(n=2) and content.read_nowait()


def test_parameters_have_the_names_of_aiohttps(url: str, spans: Spans, columns: Columns) -> None:
    """The reader is one of aiohttp for `isinstance`, and what is read without waiting is recorded, too."""
    ask(url, "anthropic", by_name)
    (span,) = spans()
    assert of([span])["legato.stream.outcome"] == "complete" and sum(columns(span)["sizes"]) == CONTENT


async def left(response: Any) -> None:
    """Stop after the first part."""
    await response.content.readany()


@pytest.mark.parametrize(
    ("path", "read", "outcome"),
    [
        ("anthropic?pause=1", left, "client_cancel"),
        ("anthropic?cut", by_line, "upstream_error"),
        ("anthropic?break", by_line, "upstream_error"),
        ("anthropic?pause=5", by_line, "timeout"),
        ("anthropic?status=503", left, "upstream_error"),
    ],
)
def test_ends(url: str, spans: Spans, path: str, read: Callable[[Any], Awaitable[Any]], outcome: str) -> None:
    """Left, cut, broken, too slow, and refused."""
    try:
        ask(url, path, read, timeout=aiohttp.ClientTimeout(sock_read=1.5))
    except (aiohttp.ClientError, TimeoutError):
        assert outcome in ("upstream_error", "timeout")
    assert of(spans())["legato.stream.outcome"] == outcome


def test_a_blocked_loop_and_a_slow_application_are_holds(url: str, spans: Spans, columns: Columns) -> None:
    """The time before the next read is requested, and the time in which the loop could not run."""

    async def slowly(response: Any) -> None:
        asyncio.get_running_loop().call_later(0.25, time.sleep, 0.4)
        async for _ in response.content.iter_any():
            await asyncio.sleep(0.05)

    ask(url, "own-text?pause=0.1", slowly)
    assert sum(columns(spans()[0])["holds"]) * 0.064 > 500


async def reading(request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
    """A middleware of the application that reads each response."""
    response = await handler(request)
    await response.read()
    return response


def test_what_a_middleware_has_read_has_no_row(url: str, spans: Spans) -> None:
    """Nothing is known of its chunks."""
    ask(url, "anthropic", lambda response: response.read(), middlewares=(reading,))
    assert spans() == []


def test_the_trace_and_what_is_no_stream(url: str, spans: Spans) -> None:
    """Requests carry the context; a request for notifications has no row; without the instrumentation there is none."""
    ask(url, "anthropic", by_part, headers=[("X-Mine", "1")])
    (span,) = spans()
    assert span.context is not None and f"{span.context.span_id:016x}" in seen[-1]["traceparent"] and seen[-1]["x-mine"] == "1"

    async def notifications() -> None:
        async with aiohttp.ClientSession(url) as session, session.get("/own-text") as response:
            await by_part(response)

    asyncio.run(notifications())
    legato.uninstrument_aiohttp()
    ask(url, "anthropic", by_part)
    legato.instrument_aiohttp()
    assert len(spans()) == 1
