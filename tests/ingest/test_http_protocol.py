"""HTTP/1.1 with a bound: a head, a chunk's extension or trailers without end close the connection, and usual requests pass."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse

from helpers.servers.serving import served
from legato_ingest import http_protocol
from legato_ingest.http_protocol import _HEADERS_MAX, HEAD_BYTES_MAX, HttpProtocol


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """An app that returns the length of the body and of one header."""
    app = FastAPI()

    @app.get("/large")
    async def large() -> PlainTextResponse:
        return PlainTextResponse("x" * 30_000_000)

    @app.post("/{rest:path}")
    async def length(request: Request) -> list[int]:
        return [len(await request.body()), len(request.headers.get("x-long", ""))]

    with served(app, http=HttpProtocol) as at:
        yield at


def test_usual_requests_pass(url: str) -> None:
    """Many on one connection, with large bodies, in chunks, and with a long header."""
    with httpx.Client() as client:
        for size in (0, 1, 300_000, 5_000_000):
            assert client.post(f"{url}/x", content=bytes(size)).json() == [size, 0]
            assert client.post(f"{url}/x", content=iter([bytes(size)] * 3)).json() == [3 * size, 0]
            assert client.post(f"{url}/x", headers={"x-long": "y" * 60_000}).json() == [0, 60_000]


@pytest.mark.parametrize(
    ("start", "endless", "least"),
    [
        (b"POST /", b"x" * 10_000, HEAD_BYTES_MAX),
        (b"POST / HTTP/1.1\r\nhost: x\r\n", b"header: %s\r\n" % (b"y" * 10_000), HEAD_BYTES_MAX),
        (b"POST / HTTP/1.1\r\nhost: x\r\n", b"a:b\r\n" * 2_000, _HEADERS_MAX * 5),
        (b"POST / HTTP/1.1\r\nhost: x\r\nheader: ", b"y" * 10_000, HEAD_BYTES_MAX),
        (b"POST / HTTP/1.1\r\nhost: x\r\n", b"y" * 10_000, HEAD_BYTES_MAX),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1;", b"extension" * 1_000, HEAD_BYTES_MAX),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"trailer: z\r\n" * 1_000, _HEADERS_MAX * 12),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\ntrailer: ", b"z" * 10_000, HEAD_BYTES_MAX),
    ],
    ids=["url", "headers", "short headers", "header value", "header name", "chunk extension", "trailers", "trailer value"],
)
def test_what_never_ends_is_cut_off(url: str, start: bytes, endless: bytes, least: int) -> None:
    """The server closes the connection soon after its bound, and reads no further."""
    host, port = url.removeprefix("http://").split(":")
    sent = 0
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(start)
        try:
            while sent < 50_000_000:
                sent += connection.send(endless)
        except OSError:
            pass
    assert least < sent < 20_000_000
    assert httpx.post(f"{url}/x", content=b"123").json() == [3, 0]


@contextlib.contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    """A connection to the server."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        yield connection


def slowly() -> Iterator[bytes]:
    """Yield 350,000 bytes in 1.5 s."""
    for _ in range(5):
        time.sleep(0.3)
        yield b"x" * 70_000


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of time that a test can wait for, and within which a client on a busy machine sends."""
    for name, value in (("_CHECK_S", 0.1), ("_HEAD_S", 1.5), ("_STALLED_S", 2.1)):
        monkeypatch.setattr(http_protocol, name, value)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "start",
    [b"", b"POST / HTTP/1.1\r\nhost:", b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\nabc"],
    ids=["nothing", "a part of a head", "a part of a body"],
)
def test_a_client_that_stops_sending_is_disconnected(url: str, start: bytes) -> None:
    """Whatever is missing; other clients are served meanwhile, also one that sends slowly but steadily."""
    with connected(url) as stalled:
        stalled.sendall(start)
        assert httpx.post(f"{url}/x", content=slowly(), timeout=60).json() == [350_000, 0]
        with contextlib.suppress(ConnectionResetError):
            assert stalled.recv(1) == b""


@pytest.mark.usefixtures("impatient")
def test_a_client_that_does_not_read_its_reply_is_disconnected(url: str) -> None:
    """The reply is given up; a client that reads slowly gets all of it."""
    with connected(url) as unread, connected(url) as slow:
        for each in (unread, slow):
            each.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        received, until = 0, time.monotonic() + 3.5
        while received < 30_000_000:
            assert (more := len(slow.recv(1_000_000))), f"disconnected after {received} bytes"
            received += more
            time.sleep(0.02 if time.monotonic() < until else 0)
        time.sleep(max(0.0, until - time.monotonic()))
        got = 0
        with contextlib.suppress(ConnectionResetError):
            while data := unread.recv(1_000_000):
                got += len(data)
        assert got < 20_000_000


def test_connections_are_bounded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound those that never sent a request end first, and a new client is served."""
    monkeypatch.setattr(http_protocol, "CONNECTIONS_MAX", 20)
    with contextlib.ExitStack() as stack, httpx.Client() as honest:
        assert honest.post(f"{url}/x", content=b"1").json() == [1, 0]
        idle = [stack.enter_context(connected(url)) for _ in range(60)]
        assert honest.post(f"{url}/x", content=b"12").json() == [2, 0]
        assert httpx.post(f"{url}/x", content=b"123").json() == [3, 0]
        ended = 0
        for each in idle:
            each.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                try:
                    ended += each.recv(1) == b""
                except ConnectionResetError:
                    ended += 1
        assert ended >= 40


@pytest.mark.parametrize(
    "abuse", [b"POST / HTTP/1.1\r\nhost: x\r\n" + b"a:\r\n" * 60_000, b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n" * 10_000]
)
def test_what_takes_memory_for_a_few_bytes_is_refused(url: str, abuse: bytes) -> None:
    """Tens of thousands of short headers, or of requests on one connection."""
    with connected(url) as connection, contextlib.suppress(ConnectionResetError, BrokenPipeError):
        connection.sendall(abuse)
        received = 0
        while data := connection.recv(1_000_000):
            received += len(data)
        assert received < 700_000_000
    assert httpx.post(f"{url}/x", content=b"123").json() == [3, 0]


def test_a_body_of_tiny_pieces_is_cut_off(url: str) -> None:
    """Each piece costs a call of the parser. A thousand are accepted, as a slow sender may need, and any number of usual ones."""
    with httpx.Client() as client:
        assert client.post(f"{url}/x", content=iter([b"x"] * 1_000)).json() == [1_000, 0]
        assert client.post(f"{url}/x", content=iter([b"x" * 64] * 5_000)).json() == [320_000, 0]
    with connected(url) as connection, pytest.raises(OSError, match="reset|[Bb]roken pipe"):
        connection.sendall(b"POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        connection.sendall(b"1\r\nx\r\n" * 2_000_000)


@pytest.mark.parametrize("pause_s", [0.0, 0.2], ids=["one segment", "two segments"])
@pytest.mark.parametrize("body", [b"content-length: 5\r\n\r\nhello", b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"])
def test_an_upgrade_is_ignored_and_the_body_is_read(url: str, body: bytes, pause_s: float) -> None:
    """Java's client asks for h2c with its requests. Without the body, an empty request would be acknowledged."""
    head = (
        b"POST /x?y HTTP/1.1\r\nhost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\nx-long: abc\r\n"
    )
    with connected(url) as connection:
        for _ in range(2):
            connection.sendall(head)
            time.sleep(pause_s)
            connection.sendall(body + head + body)
            received = b""
            while received.count(b"[5,3]") < 2:
                assert (part := connection.recv(10_000)), received
                received += part
            assert received.count(b"HTTP/1.1 200 ") == 2 and b"HTTP/1.1 400" not in received


def test_the_close_beside_an_upgrade_is_kept(url: str) -> None:
    """The connection ends after the reply, and what follows the last request does not refuse it."""
    for connection_header in (b"Upgrade, close", b"close"):
        with connected(url) as connection:
            connection.sendall(b"POST /x HTTP/1.1\r\nhost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\ncontent-length: 2\r\n\r\nhi")
            head = b"POST /x HTTP/1.1\r\nhost: x\r\nUpgrade: h2c\r\ncontent-length: 2\r\nConnection: " + connection_header
            connection.sendall(head + b"\r\n\r\nhi\r\nstray")
            received = b""
            while part := connection.recv(10_000):
                received += part
            assert received.count(b"HTTP/1.1 200 ") == 2 and b"HTTP/1.1 400" not in received, connection_header


def test_connect_is_refused(url: str) -> None:
    """A parser ends it with its head, like an Upgrade."""
    with connected(url) as connection:
        connection.sendall(b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n")
        assert connection.recv(1_000).startswith(b"HTTP/1.1 400 ") and connection.recv(1_000) == b""
