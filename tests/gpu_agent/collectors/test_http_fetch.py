"""HTTP fetches from correct and faulty servers, with real sockets and scripted responses, each bounded in time and bytes."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import pathlib
import socket
import ssl
import time
import tracemalloc
import types
from collections.abc import Iterator

import pytest

from helpers.builders.scripted import METRICS_TEXT, Script, Server, always, answer, chunked, drip, read_request, reply_with, silent
from helpers.servers.certificates import issued
from helpers.servers.ports import free_port
from legato_gpu_agent.collectors import http_fetch as module
from legato_gpu_agent.collectors.http_fetch import BYTES_MAX, Fetcher, FetchError

SOON_S = 0.3
# A deadline with margin for a machine that is busy.
LATE_S = 10.0


@contextlib.contextmanager
def fetching(*scripts: Script, timeout_s: float = LATE_S) -> Iterator[tuple[Fetcher, Server]]:
    """Return a fetcher for a server with this script."""
    with Server(*scripts) as server, contextlib.closing(Fetcher(server.url, timeout_s)) as fetcher:
        yield fetcher, server


@pytest.mark.parametrize(
    ("script", "connections"),
    [
        (always(), 1),
        (always(chunked(METRICS_TEXT[:100], METRICS_TEXT[100:]) + b"0\r\n\r\n"), 1),
        (always(chunked(METRICS_TEXT) + b"0\r\nTrailer: x\r\n\r\n"), 1),
        (always(b"HTTP/1.1 100 Continue\r\n\r\n" + answer()), 1),
        (reply_with(answer(METRICS_TEXT, "200 OK", "Connection: close")), 4),
        (reply_with(answer().replace(b"HTTP/1.1", b"HTTP/1.0")), 4),
        (reply_with(b"HTTP/1.0 200 OK\r\n\r\n" + METRICS_TEXT), 4),
        (reply_with(answer()), 4),
        (reply_with(answer(), answer()), 2),
    ],
)
def test_a_body_is_complete_each_time(script: Script, connections: int) -> None:
    """For every way to give its length. The connection is kept if the server keeps it, and else opened again."""
    with fetching(script) as (fetcher, server):
        assert [fetcher.get("/metrics") for _ in range(4)] == [METRICS_TEXT] * 4
        assert server.connections == connections


def test_an_empty_body_is_valid() -> None:
    """And so is one of the maximum length."""
    with fetching(reply_with(answer(b""), answer(b"x" * BYTES_MAX), answer())) as (fetcher, server):
        assert [len(fetcher.get("/")) for _ in range(3)] == [0, BYTES_MAX, len(METRICS_TEXT)] and server.connections == 1


def test_the_request() -> None:
    """The path below the base, as plain text, uncompressed; a query string stays."""
    requests: list[bytes] = []

    def script(connection: socket.socket) -> None:
        while request := read_request(connection):
            requests.append(request)
            connection.sendall(answer())

    with Server(script) as server:
        for base, path in (("", "/metrics"), ("/", "/metrics"), ("/replica/1/", "/prometheus/metrics?x=1")):
            with contextlib.closing(Fetcher(server.url + base)) as fetcher:
                fetcher.get(path)
    assert [request.split(b" ", 2)[1] for request in requests] == [b"/metrics", b"/metrics", b"/replica/1/prometheus/metrics?x=1"]
    assert all(request.startswith(b"GET ") and b"User-Agent: legato-gpu-agent/" in request for request in requests)
    assert all(b"\r\nAccept: text/plain" in request and b"\r\nAccept-Encoding: identity\r\n" in request for request in requests)


REFUSALS = [
    (reply_with(answer(b"no", "404 Not Found")), FetchError, "/metrics answers 404 Not Found"),
    (reply_with(answer(b"no", "500 " + "x" * 1_000)), FetchError, "/metrics answers 500 xxx"),
    (reply_with(answer(b"", "204 No Content")), FetchError, "answers 204"),
    (reply_with(answer(METRICS_TEXT, "206 Partial Content")), FetchError, "answers 206"),
    (reply_with(answer()[:-7]), FetchError, "/metrics was cut off: 7 bytes are missing"),
    (reply_with(answer()[: -len(METRICS_TEXT)]), FetchError, f"was cut off: {len(METRICS_TEXT)} bytes are missing"),
    (reply_with(chunked(METRICS_TEXT)), http.client.IncompleteRead, "IncompleteRead"),
    (reply_with(chunked(METRICS_TEXT)[:-9]), http.client.IncompleteRead, "IncompleteRead"),
    (reply_with(chunked(METRICS_TEXT) + b"7f"), http.client.IncompleteRead, "IncompleteRead"),
    (reply_with(chunked(METRICS_TEXT) + b"zz\r\n"), http.client.IncompleteRead, "IncompleteRead"),
    (reply_with(b"SSH-2.0-OpenSSH_9.6\r\n"), http.client.BadStatusLine, "SSH"),
    (reply_with(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n"), http.client.HTTPException, "more than 100 headers"),
    (reply_with(b"HTTP/1.1 200 OK\r\nA: " + b"b" * 100_000), http.client.HTTPException, "65536"),
    (reply_with(b""), ConnectionError, "closed connection"),
    (lambda connection: None, ConnectionError, "closed connection|reset by peer|Broken pipe"),
]


@pytest.mark.parametrize(("script", "error", "message"), REFUSALS)
def test_other_responses_are_rejected(script: Script, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names what was found, and the next fetch succeeds."""
    # Packages that other tests import raise this limit for the process.
    monkeypatch.setattr(http.client, "_MAXHEADERS", 100)
    with fetching(script, always()) as (fetcher, _):
        with pytest.raises(error, match=message):
            fetcher.get("/metrics")
        assert fetcher.get("/metrics") == METRICS_TEXT


def test_a_redirect_is_not_followed() -> None:
    """Neither to the same server nor to another one, which receives no request."""
    with Server(always()) as other:
        for where in ("/elsewhere", f"{other.url}/metrics"):
            with fetching(reply_with(answer(b"", "302 Found", f"Location: {where}")), always()) as (fetcher, server):
                with pytest.raises(FetchError, match="answers 302"):
                    fetcher.get("/metrics")
                assert server.connections == 1
        assert other.connections == 0


MEGABYTES = [b"x" * 65_536] * (50 * 16)


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 52428800\r\n\r\n", b"%b"),
        (b"HTTP/1.0 200 OK\r\n\r\n", b"%b"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n%b\r\n"),
    ],
)
def test_a_body_of_50_megabytes_is_rejected(head: bytes, piece: bytes) -> None:
    """At 8 MiB, which bounds the memory; the rest is not read."""
    sent = 0

    def script(connection: socket.socket) -> None:
        nonlocal sent
        read_request(connection)
        connection.sendall(head)
        for each in MEGABYTES:
            connection.sendall(piece % each)
            sent += len(each)

    with fetching(script, always()) as (fetcher, _):
        tracemalloc.start()
        try:
            with pytest.raises(FetchError, match="/metrics is longer than 8 MiB"):
                fetcher.get("/metrics")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert fetcher.get("/metrics") == METRICS_TEXT
    assert BYTES_MAX <= sent < 40 * 2**20 and peak < 2.5 * BYTES_MAX


SLOW = {
    "silent": silent,
    "body": drip(answer()[:-500], itertools.repeat(b"x")),
    "endless": drip(b"HTTP/1.0 200 OK\r\n\r\n", itertools.repeat(b"x 1\n")),
    "head": drip(b"HTTP/1.1 200 OK\r\n", itertools.repeat(b"A")),
    "status": drip(b"", itertools.repeat(b"H")),
    "continue": drip(b"", itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n"), 0),
    "size": drip(chunked(METRICS_TEXT), itertools.repeat(b"0")),
    "chunks": drip(chunked(METRICS_TEXT), itertools.repeat(b"2\r\nx\n\r\n")),
    "trailer": drip(chunked(METRICS_TEXT) + b"0\r\n", itertools.repeat(b"A: b\r\n"), 0),
}


@pytest.mark.parametrize(("name", "kept"), [*((name, False) for name in SLOW), ("silent", True), ("head", True), ("body", True)])
def test_a_slow_server_is_abandoned(name: str, kept: bool) -> None:
    """For a pause at any point, on a new or a kept connection, the fetch ends after its timeout; then the next fetch succeeds."""

    def well_at_first(connection: socket.socket) -> None:
        if kept:
            read_request(connection)
            connection.sendall(answer())
        SLOW[name](connection)

    with fetching(well_at_first, always()) as (fetcher, server):
        if kept:
            fetcher.get("/metrics")
        # Only here: on a busy machine a good fetch may take as long.
        fetcher._timeout_s = SOON_S
        began_s = time.monotonic()
        with pytest.raises(TimeoutError, match=r"/metrics was incomplete after 0\.3 s: [\d,]+ bytes received"):
            fetcher.get("/metrics")
        assert SOON_S <= time.monotonic() - began_s < LATE_S
        fetcher._timeout_s = LATE_S
        assert fetcher.get("/metrics") == METRICS_TEXT and server.connections == 2


def test_the_timeout_starts_with_each_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection kept for longer than the timeout does not shorten it."""
    clock = itertools.count(0, LATE_S / 10)
    monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    with fetching(always()) as (fetcher, server):
        assert [fetcher.get("/metrics") for _ in range(20)] == [METRICS_TEXT] * 20
        assert next(clock) > 2 * LATE_S and server.connections == 1


def test_a_kept_connection_that_was_closed_is_opened_again_once() -> None:
    """If the new one fails too, that is reported and no third is opened; a first connection that fails is not retried."""
    with fetching(reply_with(answer()), lambda connection: None, always()) as (fetcher, server):
        assert fetcher.get("/metrics") == METRICS_TEXT and server.connections == 1
        with pytest.raises(ConnectionError):
            fetcher.get("/metrics")
        assert server.connections == 2
        assert fetcher.get("/metrics") == METRICS_TEXT and server.connections == 3


def test_a_server_that_is_away() -> None:
    """The connection is refused at once; when the server is there, the fetch succeeds."""
    with contextlib.closing(Fetcher(f"http://127.0.0.1:{free_port()}")) as fetcher:
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                fetcher.get("/metrics")
    fetcher.close()


def test_tls(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body over TLS from a trusted server, with the same time limit; an untrusted certificate is rejected."""
    certificate, key, authority = issued(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with Server(always(), always(), drip(answer()[:-500], itertools.repeat(b"x")), context=context) as server:
        with contextlib.closing(Fetcher(server.url)) as fetcher, pytest.raises(ssl.SSLCertVerificationError):
            fetcher.get("/metrics")
        authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
        with contextlib.closing(Fetcher(server.url)) as fetcher:
            assert [fetcher.get("/metrics"), fetcher.get("/metrics")] == [METRICS_TEXT, METRICS_TEXT] and server.connections == 2
        with contextlib.closing(Fetcher(server.url, SOON_S)) as fetcher, pytest.raises(TimeoutError, match="was incomplete"):
            fetcher.get("/metrics")
