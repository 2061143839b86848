"""Bodies that the OTLP endpoint refuses: other types and encodings, malformed or incomplete ones, and those over a limit."""

from __future__ import annotations

import gzip
import socket
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import zstandard

from helpers.dashboards.tables import streams
from helpers.servers.otlp import PROTOBUF, TRACES, Endpoint, accepted, refused, spans_body
from legato_ingest.storage import Store

RAW = spans_body(4).SerializeToString()


@pytest.mark.parametrize("content_type", ["application/jsonl", "text/plain", "", "application/x-protobuf-delimited", None, "x" * 5_000])
def test_another_content_type_is_415(endpoint: Endpoint, content_type: str | None) -> None:
    """Even with a valid body. The reply names what is supported, in JSON, which people can read."""
    reply = endpoint.post(spans_body().SerializeToString(), content_type=content_type)
    assert "send application/x-protobuf or application/json" in refused(reply, 415, 3).message
    assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "x" * 300])
def test_another_encoding_is_415(endpoint: Endpoint, encoding: str) -> None:
    """The reply quotes it, up to a limit."""
    assert len(refused(endpoint.post(b"abc", encoding), 415, 3).message) < 200


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        (b"\xff\xff\xff", ""),
        (b"{}", ""),
        (RAW[:-3], ""),
        (RAW, "gzip"),
        (RAW, "zstd"),
        (gzip.compress(RAW, mtime=0)[:-1], "gzip"),
        (gzip.compress(RAW, mtime=0)[:-9], "gzip"),
        (gzip.compress(RAW, mtime=0)[: len(RAW) // 9], "gzip"),
        (gzip.compress(RAW, mtime=0)[:5], "gzip"),
        (gzip.compress(RAW, mtime=0) + b"junk", "gzip"),
        (gzip.compress(RAW, mtime=0)[:-8] + bytes(8), "gzip"),
        (zlib.compress(RAW), "gzip"),
        (zstandard.compress(RAW) + b"junk", "zstd"),
        (zstandard.ZstdCompressor().compress(b"\xff" * 50), "zstd"),
        (gzip.compress(b"\xff" * 50, mtime=0), "gzip"),
    ],
)
def test_a_body_that_is_not_a_request_is_400(store: Store, endpoint: Endpoint, content: bytes, encoding: str) -> None:
    """Truncated, malformed or wrongly labelled bodies are refused for good, and nothing is stored."""
    refused(endpoint.post(content, encoding), 400, 3)
    assert not streams(store)


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
def test_every_truncation_of_a_compressed_body_is_400(store: Store, endpoint: Endpoint, encoding: str, compress: Any) -> None:
    """A part of a request is never accepted as a complete one."""
    content = compress(RAW)
    answers = {
        cut: endpoint.post(content[:cut], encoding).status_code for cut in [*range(1, 12), *range(12, len(content), 37), len(content) - 1]
    }
    assert set(answers.values()) == {400}, answers
    assert not streams(store)


@pytest.mark.parametrize("encoding", ["", "gzip", "zstd"])
def test_too_many_bytes_are_413(endpoint: Endpoint, encoding: str) -> None:
    """The limit holds for the body as received and after decompression."""
    many = bytes(200_001)
    content = {"": many, "gzip": gzip.compress(many), "zstd": zstandard.compress(many)}[encoding]
    refused(endpoint.post(content, encoding), 413, 8)


def test_a_decompression_bomb_costs_no_memory(endpoint: Endpoint) -> None:
    """190 MiB of zeros in less than 200 kB are refused as soon as the limit is passed, in under 2 s of processor time."""
    bomb = zlib.compressobj(9, wbits=31)
    content = b"".join(bomb.compress(bytes(2**20)) for _ in range(190)) + bomb.flush()
    assert len(content) < 200_000
    started = time.process_time()
    refused(endpoint.post(content, "gzip"), 413, 8)
    assert time.process_time() - started < 2


def test_a_zstd_frame_may_not_demand_a_huge_window(endpoint: Endpoint) -> None:
    """A window of 128 MiB is refused before it is allocated."""
    parameters = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    content = writer.compress(RAW) + writer.flush()
    refused(endpoint.post(content, "zstd"), 400, 3)


def test_a_body_without_a_length_is_limited(endpoint: Endpoint) -> None:
    """A chunked transfer is counted while it arrives."""

    def parts() -> Iterator[bytes]:
        for _ in range(30):
            yield bytes(10_000)

    refused(endpoint.client.post(TRACES, content=parts(), headers={"content-type": PROTOBUF}), 413, 8)


def test_a_declared_length_is_checked_before_the_body_is_read(endpoint: Endpoint) -> None:
    """A sender that declares a terabyte gets its 413 at once."""
    with socket.create_connection(endpoint.address, timeout=60) as connection:
        connection.sendall(endpoint.head(2**40))
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_a_sender_that_disconnects_does_not_affect_others(store: Store, endpoint: Endpoint) -> None:
    """After several incomplete bodies, the next request is served. They count as requests that ended, and not as faults of Legato."""
    for _ in range(5):
        with socket.create_connection(endpoint.address, timeout=60) as connection:
            connection.sendall(endpoint.head(5000) + bytes(100))
    accepted(endpoint.post(spans_body().SerializeToString()))
    assert len(streams(store)) == 1
    shown = endpoint.client.get("/metrics").text
    assert 'legato_requests_total{status="499"} 5.0' in shown and 'stage="receive"' not in shown
