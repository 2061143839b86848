"""HTTP/1.1 with a bound: a head, a chunk's extension or trailers without end close the connection, and usual requests pass."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI, Request

from helpers.servers.serving import served
from legato_ingest.http_protocol import HEAD_BYTES_MAX, HttpProtocol


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """An app that returns the length of the body and of one header."""
    app = FastAPI()

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
    ("start", "endless"),
    [
        (b"POST /", b"x" * 10_000),
        (b"POST / HTTP/1.1\r\nhost: x\r\n", b"header: %s\r\n" % (b"y" * 10_000)),
        (b"POST / HTTP/1.1\r\nhost: x\r\n", b"a:b\r\n" * 2_000),
        (b"POST / HTTP/1.1\r\nhost: x\r\nheader: ", b"y" * 10_000),
        (b"POST / HTTP/1.1\r\nhost: x\r\n", b"y" * 10_000),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1;", b"extension" * 1_000),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"trailer: z\r\n" * 1_000),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\ntrailer: ", b"z" * 10_000),
    ],
    ids=["url", "headers", "short headers", "header value", "header name", "chunk extension", "trailers", "trailer value"],
)
def test_what_never_ends_is_cut_off(url: str, start: bytes, endless: bytes) -> None:
    """The server closes the connection soon after its bound, and reads no further."""
    host, port = url.removeprefix("http://").split(":")
    sent = 0
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(start)
        try:
            while sent < 50_000_000:
                sent += connection.send(endless)
        except OSError:
            pass
    assert HEAD_BYTES_MAX < sent < 20_000_000
    assert httpx.post(f"{url}/x", content=b"123").json() == [3, 0]
