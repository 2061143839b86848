"""The reads of responses in unusual use: Unix sockets, closing from elsewhere, polling, copies, repeated headers, reference cycles."""

from __future__ import annotations

import asyncio
import copy
import gc
import pathlib
import pickle
import socket
import struct
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import httpx
import pytest
import requests
import uvicorn
from opentelemetry.sdk.trace import ReadableSpan

import legato
from helpers.servers.formats import formats_app
from helpers.servers.serving import served
from helpers.servers.waiting import until

Spans = Callable[[], list[ReadableSpan]]
ASKED: dict[str, str | bool] = {"model": "asked", "stream": True}
PART = b'data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
seen: list[list[tuple[bytes, bytes]]] = []


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of every format that keeps the headers, with all instrumentations installed."""
    app = formats_app()

    async def kept(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["headers"])
        await app(scope, receive, send)

    legato.instrument()
    with served(kept) as base:
        yield base
    legato.uninstrument()


def outcomes(spans: list[ReadableSpan]) -> list[Any]:
    """Return the streams' outcomes."""
    return [(span.attributes or {})["legato.stream.outcome"] for span in spans]


def test_a_unix_socket(url: str, spans: Spans, tmp_path: pathlib.Path) -> None:
    """Its address has no port."""
    path = str(tmp_path / "s")
    server = uvicorn.Server(uvicorn.Config(formats_app(), uds=path, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    until(lambda: server.started, 20)
    with httpx.Client(transport=httpx.HTTPTransport(uds=path)) as client:
        with client.stream("POST", "http://engine/anthropic", json=ASKED) as response:
            response.read()
    server.should_exit = True
    thread.join(20)
    assert outcomes(spans()) == ["complete"] and (spans()[0].attributes or {})["server.address"] == "engine"


class _AfterReset(httpx.HTTPTransport):
    """Returns the response when the server has reset the connection."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        until(lambda: _is_reset(response.extensions["network_stream"].get_extra_info("socket")), 20)
        return response


def _is_reset(connection: socket.socket) -> bool:
    try:
        return not connection.getpeername()
    except OSError:
        return True


def test_a_connection_that_the_server_has_reset(url: str, spans: Spans) -> None:
    """What had arrived before can be read, and is a stream with its error. The response had no row, because the address was lost."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            # The request's head and body are two writes.
            request = b""
            while b"}" not in request:
                request += connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + PART)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with httpx.Client(transport=_AfterReset()) as client, pytest.raises(httpx.ReadError):
            with client.stream("POST", f"http://127.0.0.1:{server.getsockname()[1]}/v1/chat/completions", json=ASKED) as response:
                response.read()
        thread.join()
    assert outcomes(spans()) == ["upstream_error"]


def test_a_response_that_cannot_be_attached_has_no_row(spans: Spans, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the SDK is counted, and is no cancel of the application's."""
    monkeypatch.setattr("legato._errors.is_test", lambda: False)
    monkeypatch.setattr("legato._httpx.connection_of", lambda *_: 1 / 0)
    with httpx.stream("POST", f"{url}/anthropic", json=ASKED) as response:
        assert "crossing" in response.read().decode()
    assert spans() == []


def test_a_close_from_another_thread_is_a_cancel(url: str, spans: Spans) -> None:
    """A stop button, while the reader waits."""
    with httpx.Client() as client:
        response = client.send(client.build_request("POST", f"{url}/anthropic?pause=1", json=ASKED), stream=True)
        parts = response.iter_raw()
        next(parts)
        timer = threading.Timer(0.2, response.close)
        timer.start()
        with pytest.raises(httpx.HTTPError):
            list(parts)
            raise httpx.ReadError("closed")
        timer.join()
    assert outcomes(spans()) == ["client_cancel"]


def test_a_close_by_another_task_is_a_cancel(url: str, spans: Spans) -> None:
    """The same on an event loop."""

    async def run() -> None:
        async with httpx.AsyncClient() as client:
            response = await client.send(client.build_request("POST", f"{url}/anthropic?pause=1", json=ASKED), stream=True)
            parts = response.aiter_raw()
            await anext(parts)
            reading = asyncio.ensure_future(anext(parts))
            await asyncio.sleep(0.1)
            await response.aclose()
            await asyncio.gather(reading, return_exceptions=True)

    asyncio.run(run())
    assert outcomes(spans()) == ["client_cancel"]


def test_polling_with_a_time_out_is_one_complete_stream(url: str, spans: Spans) -> None:
    """The application asks again after each time-out, for a response and for an iterator that is wrapped."""

    async def poll(take: Callable[[], Any]) -> int:
        waited = 0
        while True:
            try:
                if not await asyncio.wait_for(take(), 0.02):
                    return waited
            except TimeoutError:
                waited += 1

    class Ticks:
        left = 3
        ready = 0.0

        def __aiter__(self) -> Ticks:
            return self

        async def __anext__(self) -> str:
            now = asyncio.get_running_loop().time()
            self.ready = self.ready or now + 0.05
            await asyncio.sleep(max(0.0, self.ready - now))
            self.ready, self.left = 0.0, self.left - 1
            if self.left < 0:
                raise StopAsyncIteration
            return "word"

    async def run() -> None:
        async with aiohttp.ClientSession() as session, session.post(f"{url}/own-text?pause=0.05", json=ASKED) as response:
            assert await poll(response.content.readline)
        wrapped = legato.wrap(Ticks())
        assert await poll(lambda: anext(wrapped, ""))

    asyncio.run(run())
    assert outcomes(spans()) == ["complete"] * 2


def test_an_iterator_that_ends_with_its_cancel_is_cancelled(spans: Spans) -> None:
    """A generator that was cancelled has no more items, which is no normal end."""

    async def words() -> Any:
        yield "word"
        await asyncio.sleep(9)

    async def run() -> None:
        wrapped = legato.wrap(words())
        await anext(wrapped)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(wrapped), 0.01)
        assert await anext(wrapped, "") == ""

    asyncio.run(run())
    assert outcomes(spans()) == ["client_cancel"]


def test_copies_of_a_response(url: str) -> None:
    """A cache stores what was read."""
    with httpx.stream("POST", f"{url}/anthropic", json=ASKED) as response:
        response.read()
    assert copy.deepcopy(response).text == pickle.loads(pickle.dumps(response)).text == response.text


def test_repeated_headers_of_a_request(url: str) -> None:
    """All of them are sent, beside the trace context."""

    async def run() -> None:
        given = [("X-Mine", "1"), ("X-Mine", "2")]
        async with aiohttp.ClientSession() as session, session.post(f"{url}/anthropic", json=ASKED, headers=given) as response:
            await response.read()

    asyncio.run(run())
    names = [name for name, _ in seen[-1]]
    assert names.count(b"x-mine") == 2 and b"traceparent" in names


def test_a_response_that_is_dropped_is_freed_at_once(url: str, spans: Spans) -> None:
    """Without the garbage collector, which would keep the connection until it runs."""
    gc.disable()
    try:
        response = requests.post(f"{url}/anthropic?pause=1", json=ASKED, stream=True, timeout=60)
        freed = weakref.ref(response)
        assert next(response.iter_content(None))
        del response
        assert freed() is None

        async def run() -> None:
            async with aiohttp.ClientSession() as session:
                async with session.post(f"{url}/anthropic?pause=1", json=ASKED) as response:
                    await response.content.readany()
                freed = weakref.ref(response)
                del response
                assert freed() is None

        asyncio.run(run())
    finally:
        gc.enable()
    assert outcomes(spans()) == ["client_cancel"] * 2
