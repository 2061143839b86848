"""HTTP/2 at the HTTP port: a gRPC client is shown the right port, the log names it once, and HTTP/1.1 is not affected."""

from __future__ import annotations

import logging
import socket
from typing import Any

import grpc
import httpx
import pytest
from fastapi import FastAPI

from helpers.servers.serving import served
from legato_ingest.write.http2_refusal import protocol_class

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def test_a_grpc_client_is_shown_the_right_port(caplog: pytest.LogCaptureFixture) -> None:
    """In the error of each call, also of large ones and on one connection; of many attempts one is logged."""
    with caplog.at_level(logging.WARNING, "legato"), served(FastAPI(), http=protocol_class(4317)) as url:
        for _ in range(2):
            with grpc.insecure_channel(url.removeprefix("http://")) as channel:
                export: Any = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
                for content in (b"", bytes(1_000_000), b"a"):
                    with pytest.raises(grpc.RpcError) as error:
                        export(content, timeout=30)
                    assert isinstance(error.value, grpc.Call) and error.value.code() == grpc.StatusCode.UNAVAILABLE
                    assert "for gRPC use port 4317" in (error.value.details() or "")
        assert httpx.get(f"{url}/x").status_code == 404
    (logged,) = (record.getMessage() for record in caplog.records if record.name == "legato")
    assert "use port 4317" in logged


@pytest.mark.parametrize("frame", [b"\0\0\0\x01\x05\0\0\0\x01", b"\0\0\0\x06\x01\0\0\0\0"], ids=["calls", "pings"])
def test_a_client_that_only_asks_is_cut_off(frame: bytes) -> None:
    """Heads of calls without an end, of a client that reads no answer: the connection ends, and the server keeps no answers."""
    with served(FastAPI(), http=protocol_class(4317)) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection, pytest.raises(OSError, match="reset|[Bb]roken pipe"):
            connection.sendall(PREFACE)
            for _ in range(2_000):
                connection.sendall(frame * 1_000)


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_frames_are_read_in_any_pieces(step: int) -> None:
    """Settings are confirmed, headers of streams 1 and 3 are answered, other frames are skipped. Without gRPC the setting is named."""
    frames = (b"", b"\x04\0\0\0\0\0"), (b"x" * 300, b"\x01\x04\0\0\0\x01"), (b"y" * 20, b"\0\0\0\0\0\x01"), (b"z", b"\x01\x05\0\0\0\x03")
    sent = PREFACE + b"".join(len(content).to_bytes(3, "big") + head + content for content, head in frames)
    with served(FastAPI(), http=protocol_class(0)) as url, socket.create_connection(_address(url), timeout=60) as connection:
        connection.sendall(sent[: len(PREFACE)])
        for at in range(len(PREFACE), len(sent), step):
            connection.sendall(sent[at : at + step])
        connection.shutdown(socket.SHUT_WR)
        found = b"".join(iter(lambda: connection.recv(4096), b""))
    assert found.startswith(b"\0\0\0\x04\0\0\0\0\0" + b"\0\0\0\x04\x01\0\0\0\0")
    assert found.count(b"\x01\x05\0\0\0\x01") == found.count(b"\x01\x05\0\0\0\x03") == 1
    assert found.count(b"LEGATO_OTLP_GRPC_PORT") == 2


def _address(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)
