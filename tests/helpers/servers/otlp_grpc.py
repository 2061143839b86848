"""OTLP over gRPC in a thread, with a client of raw bytes. Only tests and benchmarks use this module."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import grpc
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from helpers.servers.otlp import StubCommitter
from legato_ingest.auth.tls import Certificate
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.signals import SPANS, Signal
from legato_ingest.settings import load
from legato_ingest.write.committer import Committer
from legato_ingest.write.grpc_server import GrpcServer
from legato_ingest.write.receiver import Receiver

__all__ = ["GrpcEndpoint", "grpc_over", "retry_after_s"]


class GrpcEndpoint:
    """A running gRPC server and a channel to it."""

    def __init__(self, port: int, metrics: Metrics, channel: grpc.Channel) -> None:
        self.port, self.metrics, self.channel = port, metrics, channel

    def export(
        self, content: bytes, signal: Signal = SPANS, *, token: str = "", metadata: Sequence[tuple[str, str]] = (), compressed: bool = False
    ) -> bytes:
        """Send a message and return the reply. Raises ``grpc.RpcError``."""
        method: Any = self.channel.unary_unary(f"/{signal.service}/Export")
        sent = [*metadata, *([("authorization", f"Bearer {token}")] if token else [])]
        how = grpc.Compression.Gzip if compressed else grpc.Compression.NoCompression
        return cast(bytes, method(content, metadata=sent, timeout=60, compression=how))


@contextmanager
def grpc_over(
    committer: Committer | StubCommitter, metrics: Metrics | None = None, root: bytes | None = None, **settings: Any
) -> Iterator[GrpcEndpoint]:
    """Serve OTLP over gRPC over a committer, with these settings. ``root`` is the certificate of the authority, with TLS."""
    metrics, loop = metrics or Metrics(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> GrpcServer:
        chosen = load(**settings)
        chain = Certificate.of(chosen, metrics)
        server = GrpcServer(chosen, Receiver(chosen, cast(Committer, committer), metrics), chain, "127.0.0.1", 0)
        await server.start()
        return server

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    address, options = f"127.0.0.1:{server.port}", [("grpc.max_send_message_length", -1)]
    secure = grpc.secure_channel(address, grpc.ssl_channel_credentials(root), options) if root else None
    try:
        with secure or grpc.insecure_channel(address, options) as channel:
            yield GrpcEndpoint(server.port, metrics, channel)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(5), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def retry_after_s(error: grpc.Call) -> int | None:
    """Return the seconds of the RetryInfo in an error; None without one. The details have the code and the message of the error."""
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    if details is None:
        return None
    status = Status.FromString(cast(bytes, details))
    assert status.code == error.code().value[0] and status.message == error.details()
    found = RetryInfo()
    return int(found.retry_delay.seconds) if status.details and status.details[0].Unpack(found) else None
