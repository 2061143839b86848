"""Large replies: the same bytes for a client that reads, and bounded memory whatever clients do, also behind TLS."""

from __future__ import annotations

import contextlib
import pathlib
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator

import anyio.to_thread
import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, StreamingResponse

from helpers.servers.certificates import issued
from helpers.servers.serving import served
from helpers.servers.waiting import until
from legato_ingest import http_protocol
from legato_ingest.http_protocol import HttpProtocol
from legato_ingest.replies import BoundedReplies, reads_as
from legato_ingest.shares import Shares

LARGE = 20_000_000


@pytest.fixture
def held() -> Shares:
    """The bytes of large replies in memory: three of them fit."""
    return Shares(3 * LARGE)


@pytest.fixture
def url(held: Shares) -> Iterator[str]:
    """An app with replies of a given size, in one piece and in several."""
    app = FastAPI()

    @app.get("/{size}")
    async def whole(size: int, request: Request) -> PlainTextResponse:
        if tenant := request.headers.get("x-tenant"):
            reads_as(request.scope, tenant)
        return PlainTextResponse("x" * size)

    @app.get("/parts/{size}")
    async def parts(size: int) -> StreamingResponse:
        return StreamingResponse(iter([b"y" * size] * 3))

    with served(BoundedReplies(app, held), http=HttpProtocol) as at:
        yield at


@contextlib.contextmanager
def unread(url: str, tenant: str = "*", first: int = 0) -> Iterator[socket.socket]:
    """Ask for a large reply, perhaps after another one, and read only the begin."""
    address = httpx.URL(url)
    with socket.create_connection((address.host, address.port), timeout=60) as connection:
        for size in (first, LARGE) if first else (LARGE,):
            connection.sendall(f"GET /{size} HTTP/1.1\r\nhost: x\r\nx-tenant: {tenant}\r\n\r\n".encode())
        assert connection.recv(100)
        yield connection


def test_replies_have_the_bytes_of_the_app(url: str, held: Shares) -> None:
    """Of any size, on one connection, and nothing is held afterwards."""
    with httpx.Client(timeout=60) as client:
        for size in (0, 1, 65_536, 65_537, 200_000, LARGE):
            assert client.get(f"{url}/{size}").content == b"x" * size
            assert client.get(f"{url}/parts/{size}").content == b"y" * 3 * size
        assert client.head(f"{url}/{LARGE}").status_code == 405
    until(lambda: held.total == 0)


def test_replies_that_are_not_read_are_bounded(url: str, held: Shares) -> None:
    """Beyond the bound a large reply is 503, and a small one is sent; a connection that ends gives its bytes back."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(unread(url)) for _ in range(3)]
        assert held.total == 3 * LARGE
        refused = httpx.get(f"{url}/{LARGE}", headers={"x-tenant": "*"})
        assert refused.status_code == 503 and refused.headers["retry-after"] == "2" and "retry later" in refused.text
        assert httpx.get(f"{url}/1000").content == b"x" * 1000
        connections[0].close()
        until(lambda: held.total == 2 * LARGE)
        assert len(httpx.get(f"{url}/{LARGE}", headers={"x-tenant": "*"}).content) == LARGE
    until(lambda: held.total == 0)


def test_a_stream_starts_before_its_first_part(held: Shares) -> None:
    """As Server-Sent Events do, of which the first may be late."""
    app, goes_on = FastAPI(), threading.Event()

    @app.get("/")
    async def events() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            await anyio.to_thread.run_sync(goes_on.wait, 10)
            yield b"data: 1\n\n"

        return StreamingResponse(parts(), media_type="text/event-stream")

    with served(BoundedReplies(app, held), http=HttpProtocol) as at, httpx.stream("GET", at, timeout=60) as reply:
        assert reply.status_code == 200
        goes_on.set()
        assert reply.read() == b"data: 1\n\n"


def test_one_tenant_has_half(url: str) -> None:
    """The replies of others have room."""
    with unread(url, "a"):
        assert httpx.get(f"{url}/{LARGE}", headers={"x-tenant": "a"}).status_code == 503
        assert httpx.get(f"{url}/{LARGE}", headers={"x-tenant": "b"}).status_code == 200
        assert httpx.get(f"{url}/{LARGE}").status_code == 200


def test_a_reply_behind_one_that_is_not_read_is_counted(url: str, held: Shares) -> None:
    """Its start waits until the client has read the one before, and its body is in memory meanwhile."""
    with contextlib.ExitStack() as stack:
        for number in range(4):
            stack.enter_context(unread(url, first=65_536))
            until(lambda number=number: held.total == min(3, number + 1) * LARGE)  # type: ignore[misc]
    until(lambda: held.total == 0)


def test_a_second_reply_of_a_connection_waits_for_the_first(url: str, held: Shares) -> None:
    """Pipelined requests: what waits for their client is counted, each reply once."""
    with unread(url) as connection:
        connection.sendall(f"GET /{LARGE} HTTP/1.1\r\nhost: x\r\nx-tenant: *\r\n\r\n".encode() * 5)
        time.sleep(0.3)
        assert held.total == LARGE


def test_a_client_that_reads_slowly_gets_all_and_one_that_does_not_is_ended(
    url: str, held: Shares, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then is no progress."""
    monkeypatch.setattr(http_protocol, "_CHECK_S", 0.1)
    # A busy machine may stop for two seconds.
    monkeypatch.setattr(http_protocol, "_STALLED_S", 3.0)
    with unread(url) as stalled, unread(url) as slow:
        got, until_s = 0, time.monotonic() + 5
        while got < LARGE - 1_000:
            got += len(slow.recv(300_000))
            if time.monotonic() < until_s:
                time.sleep(0.07)
                with contextlib.suppress(ConnectionResetError, BlockingIOError):
                    stalled.setblocking(False)
                    stalled.recv(1)
        until(lambda: held.total == 0)


@pytest.mark.parametrize("times", [1, 3])
def test_replies_are_bounded_behind_tls(tmp_path: pathlib.Path, held: Shares, times: int) -> None:
    """There the transport shows only a part of what waits."""
    app = FastAPI()

    @app.get("/{size}")
    async def whole(size: int, request: Request) -> PlainTextResponse:
        reads_as(request.scope, "*")
        return PlainTextResponse("x" * size)

    certificate, key, _ = issued(tmp_path)
    options = {"ssl_certfile": certificate, "ssl_keyfile": key}
    with served(BoundedReplies(app, held), http=HttpProtocol, **options) as at, contextlib.ExitStack() as stack:
        address, context = httpx.URL(at), ssl._create_unverified_context()
        for _ in range(times):
            plain = stack.enter_context(socket.create_connection((address.host, address.port), timeout=60))
            connection = stack.enter_context(context.wrap_socket(plain))
            connection.sendall(f"GET /{LARGE} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            assert connection.recv(100)
        time.sleep(0.5)
        assert held.total == times * LARGE
        status = httpx.get(f"https://{address.host}:{address.port}/{LARGE}", verify=False).status_code
        assert status == (503 if times == 3 else 200)
