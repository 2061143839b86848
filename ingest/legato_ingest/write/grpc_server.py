"""OTLP over gRPC: the services of traces, metrics and logs, on the event loop of the HTTP endpoint and with the same receiver.

A message reaches the receiver as bytes, so it is parsed once, and after the token was checked, because each call is handled as a stream of
one message. gRPC's own code checks the size of a message before and after decompression. Overload and a store that does not answer carry a
google.rpc.RetryInfo, without which senders drop what they sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc import aio

from legato_ingest.errors import LegatoError, Overloaded, TooLarge
from legato_ingest.otlp.http import GRPC_CODES
from legato_ingest.otlp.signals import SIGNALS, Signal
from legato_ingest.settings import Settings
from legato_ingest.write.receiver import Call, Counters, Outcome, Receiver

__all__ = ["GrpcServer"]

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_DETAILS = "grpc-status-details-bin"
# Senders may ping idle connections this often. gRPC's default, 5 minutes, ends the connections of Collectors with a usual keep-alive.
_PING_MS = 10_000
# Calls of one connection, and of all, at the same time.
_CALLS_A_CONNECTION_MAX, _CALLS_MAX = 64, 1024
_READ_S_MAX = 30


class GrpcServer:
    """Serves OTLP on an address of this host. Create, start and stop it on the event loop of ``receiver``."""

    def __init__(self, settings: Settings, receiver: Receiver, host: str, port: int) -> None:
        self._server = aio.server(
            options=(
                ("grpc.max_receive_message_length", settings.body_bytes_max),
                # Otherwise a second server could listen on the same port and get half of the calls.
                ("grpc.so_reuseport", 0),
                ("grpc.max_concurrent_streams", _CALLS_A_CONNECTION_MAX),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", _PING_MS),
                ("grpc.keepalive_permit_without_calls", 1),
            ),
            maximum_concurrent_rpcs=_CALLS_MAX,
        )
        # A message is in memory before its bytes are counted, so only so many are read at a time. The others wait in their connections.
        reading = asyncio.Semaphore(max(1, settings.queue_bytes_max // settings.body_bytes_max))
        for signal in SIGNALS:
            handler: Any = grpc.stream_unary_rpc_method_handler(_export(receiver, signal, reading))
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(signal.service, {"Export": handler}),))
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if settings.tls_cert_file and settings.tls_key_file:
                pair = settings.tls_key_file.read_bytes(), settings.tls_cert_file.read_bytes()
                self.port = self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
            else:
                self.port = self._server.add_insecure_port(address)
        except RuntimeError:
            raise LegatoError(f"cannot listen on {address}: stop the process that listens there, or set LEGATO_OTLP_GRPC_PORT") from None

    async def start(self) -> None:
        """Accept calls."""
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Accept no new calls, and end when the present ones have ended or after this time."""
        await self._server.stop(grace_s)


def _export(receiver: Receiver, signal: Signal, reading: asyncio.Semaphore) -> Any:
    async def export(messages: AsyncIterator[bytes], context: aio.ServicerContext[bytes, bytes]) -> bytes:
        metadata = dict(context.invocation_metadata() or ())

        async def read(counters: Counters) -> bytes:
            try:
                async with reading, asyncio.timeout(_READ_S_MAX):
                    content = await anext(messages, None)
            except TimeoutError:
                raise Overloaded(f"the message did not arrive within {_READ_S_MAX} s") from None
            if content is None:
                # gRPC has answered already if the message was too large.
                raise TooLarge(f"no message, or a message of more than {receiver.body_bytes_max} bytes")
            for count in counters:
                count(len(content))
            return content

        call = Call(signal, read, _text(metadata.get("authorization")), _text(metadata.get("origin")))
        outcome = await receiver.answer(call)
        if outcome.status != 200:
            await _abort(context, outcome)
        return bytes(outcome.reply(signal).SerializeToString())

    return export


async def _abort(context: aio.ServicerContext[bytes, bytes], outcome: Outcome) -> None:
    code = GRPC_CODES[outcome.status]
    status = Status(code=code, message=outcome.message)
    if outcome.retry_after_s is not None:
        status.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=outcome.retry_after_s)))
    await context.abort(_CODES[code], outcome.message, ((_DETAILS, bytes(status.SerializeToString())),))


def _text(value: str | bytes | None) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value or ""
