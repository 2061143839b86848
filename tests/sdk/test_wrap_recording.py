"""Which streams `legato.wrap` leaves to an instrumentation, and that its own faults stay away from the application's iteration."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

import legato
from helpers.servers.formats import formats_app
from helpers.servers.serving import served
from legato._errors import faults

Spans = Callable[[], list[ReadableSpan]]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A stream of Ollama's format, with httpx instrumented."""
    legato.instrument_httpx()
    with served(formats_app()) as base:
        yield f"{base}/ollama"
    legato.uninstrument_httpx()


def transports(spans: Spans) -> list[str]:
    """Return the transports of this test's streams: `iterator` is one of `wrap`."""
    return sorted(str((span.attributes or {})["legato.stream.transport"]) for span in spans())


def read(url: str) -> None:
    """Read a stream besides."""
    with httpx.stream("POST", url) as response:
        response.read()


def test_streams_that_begin_besides_leave_the_source_its_row(url: str, spans: Spans) -> None:
    """A check of the prompt before the request, and a thread with the context, which begins its stream later."""
    is_first = threading.Event()

    def later() -> None:
        assert is_first.wait(30)
        read(url)

    def items(side: Any) -> Iterator[str]:
        yield "a"
        is_first.set()
        side.result()
        yield "b"

    @contextlib.contextmanager
    def session() -> Iterator[Iterator[str]]:
        read(url)
        yield items(pool.submit(legato.carry(later)))

    with ThreadPoolExecutor(1) as pool:
        assert list(legato.wrap(session())) == ["a", "b"]
    assert transports(spans) == ["http/1.1", "http/1.1", "iterator"]


def test_a_background_task_leaves_the_source_its_row(url: str, spans: Spans) -> None:
    """Tasks inherit the context in which the source was opened, also while it waits for its first item."""

    class Session:
        async def __aenter__(self) -> AsyncIterator[str]:
            self.task = asyncio.create_task(self.side())
            return self.items()

        async def __aexit__(self, *exception: object) -> None:
            await self.task

        async def side(self) -> None:
            async with httpx.AsyncClient() as client, client.stream("POST", url) as response:
                await response.aread()

        async def items(self) -> AsyncIterator[str]:
            await self.task
            yield "a"

    async def run() -> None:
        async with legato.wrap(Session()) as wrapped:
            assert [item async for item in wrapped] == ["a"]
        assert [item async for item in legato.wrap(Session())] == ["a"]

    asyncio.run(run())
    assert transports(spans) == ["http/1.1", "http/1.1", "iterator", "iterator"]


def test_an_opened_stream_that_is_recorded_has_one_row(url: str, spans: Spans) -> None:
    """Of a coroutine or a task, as it is or behind a generator of the application; and of a request that fails, the instrumentation's."""

    async def parsed(response: httpx.Response) -> AsyncIterator[str]:
        async for line in response.aiter_lines():
            yield line.upper()

    async def run() -> None:
        async with httpx.AsyncClient() as client:

            async def create(at: str, make: Callable[[httpx.Response], AsyncIterator[str]]) -> AsyncIterator[str]:
                return make(await client.send(client.build_request("POST", at, json={"stream": True}), stream=True))

            plain: Any = httpx.Response.aiter_lines
            for source in (create(url, plain), create(url, parsed), asyncio.create_task(create(url, plain))):
                assert [line async for line in legato.wrap(source)]
            with pytest.raises(httpx.ConnectError):
                await anext(legato.wrap(create("http://127.0.0.1:9", plain)))

    asyncio.run(run())
    assert transports(spans) == ["http/1.1"] * 4
    assert [(span.attributes or {})["legato.stream.outcome"] for span in spans()] == ["complete"] * 3 + ["upstream_error"]


class Refusing(SpanProcessor):
    """A processor of the application that can fail."""

    is_on = False

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self.is_on:
            raise ValueError


def test_a_recording_that_cannot_begin_leaves_the_items_alone(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream passes unrecorded, and the fault is counted."""

    async def words() -> AsyncIterator[str]:
        yield "a"

    async def create() -> AsyncIterator[str]:
        return words()

    async def run() -> list[str]:
        return [item async for item in legato.wrap(create())]

    refusing, before = Refusing(), faults.get("wrap()", 0)
    provider: Any = trace.get_tracer_provider()
    provider.add_span_processor(refusing)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    refusing.is_on = True
    try:
        passed = [list(legato.wrap(["a"])), list(legato.wrap(contextlib.nullcontext(["a"]))), asyncio.run(run())]
    finally:
        refusing.is_on = False
    assert passed == [["a"]] * 3 and faults["wrap()"] == before + 3 and not spans()


def test_a_source_without_an_iterator_begins_no_stream(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    """The application gets the source's error, and nothing else appears in its log."""

    class Closed:
        def __iter__(self) -> Iterator[str]:
            raise ConnectionError

    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    started = legato.stats()["started"]
    with pytest.raises(ConnectionError):
        legato.wrap(Closed())
    gc.collect()
    assert not ignored and legato.stats()["started"] == started and not spans()


def test_an_empty_source_that_is_opened_is_complete(spans: Spans) -> None:
    """Its end comes with the opening."""
    assert list(legato.wrap(contextlib.nullcontext([]))) == []
    assert [(span.attributes or {})["legato.stream.outcome"] for span in spans()] == ["complete"]
