"""OTLP over gRPC: the services of traces, metrics and logs, on the event loop of the HTTP endpoint and with the same receiver.

A message reaches the receiver as bytes, so it is parsed once, and after the token was checked, because each call is handled as a stream of
one message. gRPC's own code checks the size of a message before and after decompression. Overload and a store that does not answer carry a
google.rpc.RetryInfo, without which senders drop what they sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc import aio

from legato_ingest.auth.tls import Certificate
from legato_ingest.errors import LegatoError, Overloaded, TooLarge
from legato_ingest.http_protocol import CONNECTIONS_MAX
from legato_ingest.otlp.http import GRPC_CODES
from legato_ingest.otlp.signals import SIGNALS, Signal
from legato_ingest.settings import Settings
from legato_ingest.write.receiver import Call, Counters, Outcome, Receiver

__all__ = ["GrpcServer"]

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_DETAILS = "grpc-status-details-bin"
# Senders may ping idle connections this often. gRPC's default, 5 minutes, ends the connections of Collectors with a usual keep-alive.
_PING_MS = 10_000
# A connection that does not begin HTTP/2 is closed after this time, as one without a head is over HTTP.
_HANDSHAKE_MS = 30_000
# A connection without calls is closed after the first of these times; one that does not answer a ping after the others together.
_IDLE_MS, _KEEPALIVE_MS, _KEEPALIVE_TIMEOUT_MS = 300_000, 60_000, 20_000
# Calls of one connection at the same time; calls of all that wait for their message.
_CALLS_A_CONNECTION_MAX, _CALLS_MAX = 64, 256
_READ_S_MAX = 30
# (tenant, address); with an empty address, all of the tenant; with both empty, all senders.
_Sender = tuple[str, str]
_WINDOW_BYTES = 256 * 1024


class GrpcServer:
    """Serves OTLP on an address of this host. Create, start and stop it on the event loop of ``receiver``.

    ``certificate`` is None without TLS.
    """

    def __init__(self, settings: Settings, receiver: Receiver, certificate: Certificate | None, host: str, port: int) -> None:
        self._server = aio.server(
            options=(
                ("grpc.max_receive_message_length", settings.body_bytes_max),
                # A call that waits for its place has a part of its message in the connection only: no window that grows.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
                # Otherwise a second server could listen on the same port and get half of the calls.
                ("grpc.so_reuseport", 0),
                ("grpc.max_allowed_incoming_connections", CONNECTIONS_MAX),
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
                ("grpc.max_concurrent_streams", _CALLS_A_CONNECTION_MAX),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", _PING_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
                ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
            ),
        )
        reading = _Places(max(2, settings.queue_bytes_max // settings.body_bytes_max))
        for signal in SIGNALS:
            handler: Any = grpc.stream_unary_rpc_method_handler(_export(receiver, signal, reading))
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(signal.service, {"Export": handler}),))
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if certificate is not None:
                self.port = self._server.add_secure_port(address, _credentials(certificate))
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


def _credentials(certificate: Certificate) -> grpc.ServerCredentials:
    """Credentials with the present certificate: gRPC asks for a renewed one in each new connection, and keeps its own if there is none."""
    used = certificate.pair

    def renewed() -> Any:
        nonlocal used
        if certificate.pair is used:
            return None
        used = certificate.pair
        return _configuration(used)

    return grpc.dynamic_ssl_server_credentials(_configuration(used), renewed)


def _configuration(pair: tuple[bytes, bytes]) -> grpc.ServerCertificateConfiguration:
    chain, key = pair
    return grpc.ssl_server_certificate_configuration([(key, chain)])


class _Places:
    """Calls that read their message now, and calls that wait for that. Used on one event loop.

    A message is in memory before its bytes are counted, so only so many are read at a time; the others wait in their connections. A sender
    may begin calls and never send a message. So a tenant has half of the places at most, and an address half of those of its tenant; all
    senders without a tenant, on a server without tokens, may have all places together.
    """

    def __init__(self, number: int) -> None:
        self._number, self._calls = number, Counter[_Sender]()
        self._places: dict[_Sender, asyncio.Semaphore] = {}

    @contextlib.asynccontextmanager
    async def place(self, tenant: str, address: str) -> AsyncIterator[None]:
        """Wait for a place and hold it. Raises ``Overloaded`` if too many calls wait, of all, of the tenant or of the address."""
        # A host comes first: its calls wait for each other outside of what all hosts of its tenant share.
        senders = [((tenant, address), 4 if tenant else 2), *([((tenant, ""), 2)] if tenant else ()), (("", ""), 1)]
        if any(self._calls[sender] >= _CALLS_MAX // share for sender, share in senders):
            raise Overloaded(
                f"{self._calls[tenant, address]} calls of this sender, and {self._calls['', '']} in all, wait for their message"
            )
        async with contextlib.AsyncExitStack() as held:
            for sender, share in senders:
                held.enter_context(self._counted(sender, max(1, self._number // share)))
            for sender, _ in senders:
                await held.enter_async_context(self._places[sender])
            yield

    @contextlib.contextmanager
    def _counted(self, sender: _Sender, places: int) -> Iterator[None]:
        """Count a call of a sender, and keep its places while it has calls."""
        self._calls[sender] += 1
        self._places.setdefault(sender, asyncio.Semaphore(places))
        try:
            yield
        finally:
            self._calls[sender] -= 1
            if not self._calls[sender]:
                del self._calls[sender], self._places[sender]


def _export(receiver: Receiver, signal: Signal, reading: _Places) -> Any:
    async def export(messages: AsyncIterator[bytes], context: aio.ServicerContext[bytes, bytes]) -> bytes:
        metadata = dict(context.invocation_metadata() or ())
        authorization, origin = _text(metadata.get("authorization")), _text(metadata.get("origin"))

        async def read(counters: Counters) -> bytes:
            tenant = receiver.authenticator.writer(authorization, origin)
            # Without the port, which is another one for each connection.
            address = str(context.peer()).rpartition(":")[0]
            try:
                async with asyncio.timeout(_READ_S_MAX), reading.place(tenant, address):
                    # Not the iterator ``messages``: suspended behind the message, it keeps the message in a cycle.
                    content = await context.read()
            except TimeoutError:
                raise Overloaded(f"the message did not arrive within {_READ_S_MAX} s") from None
            if not isinstance(content, bytes):
                # gRPC has answered already if the message was too large.
                raise TooLarge(f"no message, or a message of more than {receiver.body_bytes_max} bytes")
            for count in counters:
                count(len(content))
            return content

        call = Call(signal, read, authorization, origin)
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
