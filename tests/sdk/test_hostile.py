"""Broken and hostile servers, over real sockets to real clients: what a recorded client holds more than a bare one, and how streams end."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

HERE = pathlib.Path(__file__).parent
ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
EXTRA_MIB = 20
PATIENCE_S = 120
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
WORD = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
END = WORD.replace(b"null", b'"stop"') + b"data: [DONE]\n\n"
Parts = Iterator[bytes]


def framed(data: bytes) -> bytes:
    """One chunk of the transfer encoding; the last one if there is no data."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def endless_line() -> Parts:
    """An event that never ends, of 80 MB; then the connection is closed within it."""
    yield HEAD + b"\r\n" + framed(WORD) + framed(b'data: {"x":"')
    for _ in range(1_200):
        yield framed(b"a" * 65_536)


def ended_line() -> Parts:
    """The same, and the body ends as it should, but within the event."""
    yield from endless_line()
    yield framed(b"")


def tiny_events() -> Parts:
    """A million and a half events, many in a read, and an end as it should be."""
    yield HEAD + b"\r\n" + framed(WORD)
    for _ in range(183):
        yield framed(b"data:x\n\n" * 8_192)
    yield framed(END) + framed(b"")


def tiny_reads() -> Parts:
    """Events as reads, as fast as a client reads them."""
    yield HEAD + b"\r\n" + framed(WORD)
    for _ in range(10):
        yield framed(b"data:x\n\n") * 2_000
    yield framed(END) + framed(b"")


def invalid_text() -> Parts:
    """Events that are no UTF-8, and a body that ends without an end mark."""
    yield HEAD + b"\r\n" + framed(WORD)
    for _ in range(20):
        yield framed(b"data: {\xff\xfe\x80" + b"\x80" * 900 + b"}\n\n" + WORD)
    yield framed(b"")


def compressed_bomb() -> Parts:
    """A body of 60 kB that becomes 60 MB."""
    packed = zlib.compressobj(9, wbits=31)
    yield HEAD + b"content-encoding: gzip\r\n\r\n"
    for _ in range(60):
        data = packed.compress(bytes(1 << 20))
        if data:
            yield framed(data)
    yield framed(packed.flush()) + framed(b"")


def endless_trailer() -> Parts:
    """A body that ends, and a trailer of 50 MB."""
    yield HEAD + b"\r\n" + framed(WORD) + framed(END) + b"0\r\n"
    for _ in range(500):
        yield (b"x-a: " + b"b" * 993 + b"\r\n") * 100


def large_headers() -> Parts:
    """Headers of a megabyte."""
    yield HEAD
    for number in range(1_000):
        yield b"x-%d: " % number + b"b" * 1_000 + b"\r\n"
    yield b"\r\n" + framed(WORD) + framed(END) + framed(b"")


# What is sent in each case, and the outcome of the stream.
CASES: dict[str, tuple[Callable[[], Parts], str]] = {
    "endless_line": (endless_line, "upstream_error"),
    "ended_line": (ended_line, "upstream_error"),
    "tiny_events": (tiny_events, "complete"),
    "tiny_reads": (tiny_reads, "complete"),
    "invalid_text": (invalid_text, "upstream_error"),
    "compressed_bomb": (compressed_bomb, "complete"),
    "endless_trailer": (endless_trailer, "complete"),
    "large_headers": (large_headers, ""),
}
FEW = ("endless_line", "tiny_events", "compressed_bomb")
CLIENTS = {
    "httpx": tuple(CASES),
    "httpx_async": FEW,
    "openai": FEW,
    "aiohttp": (*FEW, "large_headers"),
    "requests": (*FEW, "large_headers"),
}


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Answer each connection with what its path names; a client may leave at any moment."""

    def answer(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            received = b""
            while b"messages" not in received:
                received += connection.recv(65_536)
            for part in CASES[received.split(b"/")[1].decode()][0]():
                connection.sendall(part)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        # Closing alone does not end the thread that accepts.
        listener.shutdown(socket.SHUT_RDWR)


@functools.cache
def read_by(client: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return of each case what a recorded and a bare application print that read the response, at the same time."""
    with serving() as url:
        command, pipe = [sys.executable, "-W", "ignore", str(HERE / "hostile_application.py"), client, url], subprocess.PIPE
        running = [
            subprocess.Popen([*command, way, *CLIENTS[client]], env=ENVIRON, stdout=pipe, stderr=pipe, text=True)
            for way in ("recorded", "bare")
        ]
        try:
            printed = [process.communicate(timeout=PATIENCE_S) for process in running]
        finally:
            for process in running:
                process.kill()
    recorded, bare = ([json.loads(line) for line in output.splitlines()] for output, _ in printed)
    assert len(recorded) == len(bare) == len(CLIENTS[client]), printed
    return dict(zip(CLIENTS[client], zip(recorded, bare, strict=True), strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of the resident memory is Linux's")
@pytest.mark.parametrize(("client", "case"), [(client, case) for client, cases in CLIENTS.items() for case in cases])
def test_a_recorded_client_holds_little_more_than_a_bare_one(client: str, case: str) -> None:
    """Whatever a server sends: 20 MiB at most, the same error of the client and no other, the right outcome, and every byte counted.

    Headers and trailers are not looked at; a client that refuses them raises as it does alone. A response that was whole is complete.
    """
    recorded, bare = read_by(client)[case]
    assert (recorded["error"], recorded["faults"], recorded["flushed"]) == (bare["error"], 0, True), (recorded, bare)
    assert recorded["growth_mib"] - bare["growth_mib"] <= EXTRA_MIB, (recorded, bare)
    (stream,) = recorded["streams"]
    # In what was folded there may have been an end mark.
    expected = (
        "complete" if case == "ended_line" and recorded["folded"] else CASES[case][1] or ("upstream_error" if bare["error"] else "complete")
    )
    assert stream["outcome"] == expected, (recorded, bare)
    if not bare["error"]:
        assert recorded["bytes"] == bare["bytes"] == stream["wire_bytes"], (recorded, bare)
