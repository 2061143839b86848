"""OTLP over gRPC: the rows of HTTP, statuses and times to retry after, limits, tokens, TLS, and OpenTelemetry's own exporters."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import pathlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Queue
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult

from helpers.builders.points import gauge, metrics_request
from helpers.dashboards.tables import streams
from helpers.platform.examples import examples
from helpers.servers.certificates import issued
from helpers.servers.otlp import StubCommitter, spans_body
from helpers.servers.otlp_grpc import GrpcEndpoint, grpc_over, retry_after_s
from legato_ingest.auth import tokens
from legato_ingest.auth.tokens import READ, WRITE
from legato_ingest.errors import LegatoError, Overloaded, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Batch
from legato_ingest.otlp.signals import LOGS, POINTS, SIGNALS, SPANS
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.write.body import Entry
from legato_ingest.write.committer import Committer, Receipt
from legato_ingest.write.grpc_server import GrpcServer, _Places
from legato_ingest.write.receiver import Receiver

GOOD = spans_body(2).SerializeToString()
CODE = grpc.StatusCode


@pytest.fixture(scope="module")
def lasting(shared_store: Store) -> Iterator[GrpcEndpoint]:
    """A server over the shared store; it accepts messages up to 200,000 bytes."""
    metrics = Metrics()
    committer = Committer(shared_store, metrics, queue_bytes_max=2**26, chunks_max=10**6)
    with grpc_over(committer, metrics, body_bytes_max=200_000) as endpoint:
        yield endpoint
    committer.close()


@pytest.fixture
def endpoint(store: Store, lasting: GrpcEndpoint) -> GrpcEndpoint:
    """The lasting server over an empty store."""
    return lasting


def failed(endpoint: GrpcEndpoint, content: bytes = GOOD, **more: str) -> grpc.Call:
    """Send a message that is refused, and return the error."""
    with pytest.raises(grpc.RpcError) as error:
        endpoint.export(content, **more)  # type: ignore[arg-type]
    assert isinstance(error.value, grpc.Call)
    return error.value


def test_all_signals_are_received(store: Store, endpoint: GrpcEndpoint) -> None:
    """Compressed or not; a message that is sent again is a duplicate, and log records are counted."""
    points, logs = metrics_request(), ExportLogsServiceRequest()
    gauge(points, "a", 1.5, time.time_ns())
    logs.resource_logs.add().scope_logs.add().log_records.add()
    assert endpoint.export(GOOD) == endpoint.export(GOOD, compressed=True) == endpoint.export(b"") == b""
    assert endpoint.export(points.SerializeToString(), POINTS) == endpoint.export(logs.SerializeToString(), LOGS) == b""
    assert store.select("SELECT count() FROM stream_revs") == [(2,)] and store.select("SELECT count() FROM node_samples") == [(1,)]
    counted = endpoint.metrics.registry.get_sample_value("legato_log_records_total", {"outcome": "ignored"})
    assert counted == 1


def test_a_partial_success_is_ok(store: Store, endpoint: GrpcEndpoint) -> None:
    """With number and reasons."""
    partial = ExportTraceServiceResponse.FromString(endpoint.export(spans_body(3, bad=1).SerializeToString())).partial_success
    assert partial.rejected_spans == 1 and "timeline" in partial.error_message
    assert len(streams(store)) == 3


def test_bad_data_is_an_invalid_argument(endpoint: GrpcEndpoint) -> None:
    """Without a time to retry after; the connection stays usable."""
    error = failed(endpoint, b"\xff\xff\xff")
    assert error.code() == CODE.INVALID_ARGUMENT and retry_after_s(error) is None and "protobuf" in (error.details() or "")
    assert endpoint.export(b"") == b""


@given(st.binary(max_size=300))
@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_message_has_a_defined_status(lasting: GrpcEndpoint, content: bytes) -> None:
    """It is stored, rejected or an invalid argument, for each signal."""
    for signal in SIGNALS:
        try:
            lasting.export(content, signal)
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call) and error.code() == CODE.INVALID_ARGUMENT


@pytest.mark.parametrize("compressed", [False, True])
def test_a_large_message_is_refused_for_good(endpoint: GrpcEndpoint, compressed: bool) -> None:
    """RESOURCE_EXHAUSTED without RetryInfo, by the size before and after decompression."""
    for size in (200_001, 50_000_000 if compressed else 300_000):
        with pytest.raises(grpc.RpcError) as error:
            endpoint.export(bytes(size), compressed=compressed)
        assert isinstance(error.value, grpc.Call)
        assert error.value.code() == CODE.RESOURCE_EXHAUSTED and retry_after_s(error.value) is None


@pytest.mark.parametrize(
    ("stub", "code"),
    [
        (StubCommitter(StoreUnavailable("Code: 243")), CODE.UNAVAILABLE),
        (StubCommitter(Receipt(), raises=Overloaded("full")), CODE.RESOURCE_EXHAUSTED),
        (StubCommitter(RuntimeError("a secret")), CODE.UNAVAILABLE),
        (StubCommitter(Receipt(), raises=KeyError("a secret")), CODE.UNAVAILABLE),
    ],
    ids=["unavailable", "overloaded", "bug after", "bug before"],
)
def test_temporary_errors_have_a_time_to_retry_after(stub: StubCommitter, code: grpc.StatusCode) -> None:
    """None of them is INTERNAL or UNKNOWN, which senders do not retry; no reply contains the text of an exception."""
    with grpc_over(stub, retry_after_s=7) as endpoint:
        error = failed(endpoint)
        assert (error.code(), retry_after_s(error)) == (code, 7) and "secret" not in (error.details() or "")


class _Pending(StubCommitter):
    """Stores a batch when the test releases it."""

    def __init__(self) -> None:
        super().__init__(Receipt())
        self.submitted: Queue[Future[Receipt]] = Queue()

    def submit(self, batch: Batch, entry: Entry | None = None) -> Future[Receipt]:
        """Stand in for ``Committer.submit``."""
        self.submitted.put(future := Future[Receipt]())
        return future


def test_the_limits_of_a_tenant_hold() -> None:
    """While one message waits for its insert, a second one has to retry; so has one after the rate was used up."""
    pending = _Pending()
    with grpc_over(pending, tenant_in_flight_bytes_max=len(GOOD)) as endpoint, ThreadPoolExecutor(1) as pool:
        first = pool.submit(endpoint.export, GOOD)
        stored = pending.submitted.get(timeout=30)
        assert failed(endpoint).code() == CODE.RESOURCE_EXHAUSTED
        stored.set_result(Receipt())
        assert first.result(30) == b""
    with grpc_over(StubCommitter(Receipt()), tenant_bytes_per_s=1) as endpoint:
        endpoint.export(GOOD)
        error = failed(endpoint)
        assert error.code() == CODE.RESOURCE_EXHAUSTED and retry_after_s(error) == 60


def test_tokens_decide_as_over_http(tmp_path: pathlib.Path) -> None:
    """No token, a wrong one or a reader's is UNAUTHENTICATED; a token of an origin with another one is PERMISSION_DENIED; Basic works."""
    path = tmp_path / "tokens.toml"
    write, read = tokens.add(path, "w", "shop", WRITE), tokens.add(path, "r", "shop", READ)
    page = tokens.add(path, "p", "shop", WRITE, "https://shop.example")
    with grpc_over(StubCommitter(Receipt()), tokens_file=path) as endpoint:
        assert endpoint.export(GOOD, token=write) == b""
        basic = base64.b64encode(f"pk:{write}".encode()).decode()
        assert endpoint.export(GOOD, metadata=[("authorization", f"Basic {basic}")]) == b""
        for token, code in (("", CODE.UNAUTHENTICATED), (read, CODE.UNAUTHENTICATED), ("legato_x", CODE.UNAUTHENTICATED)):
            assert failed(endpoint, token=token).code() == code
        assert failed(endpoint, token=page).code() == CODE.PERMISSION_DENIED
        assert endpoint.export(GOOD, token=page, metadata=[("origin", "https://shop.example")]) == b""


def test_a_token_is_checked_before_the_message_is_read(tmp_path: pathlib.Path) -> None:
    """A large message without a token is refused because of the token."""
    path = tmp_path / "tokens.toml"
    tokens.add(path, "w", "shop", WRITE)
    with grpc_over(StubCommitter(Receipt()), tokens_file=path, body_bytes_max=1_000) as endpoint:
        assert failed(endpoint, bytes(100_000)).code() in (CODE.UNAUTHENTICATED, CODE.RESOURCE_EXHAUSTED)
        assert endpoint.metrics.registry.get_sample_value("legato_requests_total", {"status": "401"}) == 1


def test_calls_without_a_message_delay_no_other_sender(tmp_path: pathlib.Path) -> None:
    """A tenant holds half of the places that messages are read in, whatever its tokens; another one is served at once."""
    path, ended = tmp_path / "tokens.toml", threading.Event()
    *silent, honest = (tokens.add(path, name, tenant, WRITE) for name, tenant in (("a", "a"), ("a2", "a"), ("b", "b")))

    def nothing() -> Iterator[bytes]:
        ended.wait(60)
        yield from ()

    with grpc_over(StubCommitter(Receipt()), tokens_file=path) as endpoint:
        begin: Any = endpoint.channel.stream_unary(f"/{SPANS.service}/Export")
        calls = [begin.future(nothing(), metadata=[("authorization", f"Bearer {token}")]) for token in silent * 6]
        time.sleep(0.5)
        started = time.monotonic()
        assert endpoint.export(GOOD, token=honest) == b"" and time.monotonic() - started < 5
        ended.set()
        assert all(call.exception(30) is not None for call in calls)


def test_a_silent_host_delays_no_other_host_of_its_tenant() -> None:
    """Of four places a tenant has two and each of its hosts one; without tenants an address has two. A call that ends makes room."""

    async def main() -> None:
        places, silent = _Places(4), asyncio.Event()

        async def call(tenant: str, address: str) -> str:
            async with places.place(tenant, address):
                if address == "silent":
                    await silent.wait()
            return address

        for tenant, other in (("a", "b"), ("", "")):
            held = [asyncio.create_task(call(tenant, "silent")) for _ in range(3)]
            await asyncio.sleep(0)
            assert await asyncio.wait_for(call(tenant, "other"), 5) == await asyncio.wait_for(call(other, "other"), 5) == "other"
            silent.set()
            assert await asyncio.wait_for(asyncio.gather(*held), 5) == ["silent"] * 3
            silent.clear()
        assert not places._calls and not places._places

    asyncio.run(main())


def test_connections_are_bounded_and_silent_ones_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further connections are closed at once, and those that do not begin HTTP/2 make room."""
    monkeypatch.setattr("legato_ingest.write.grpc_server.CONNECTIONS_MAX", 4)
    monkeypatch.setattr("legato_ingest.write.grpc_server._HANDSHAKE_MS", 1_000)
    with grpc_over(StubCommitter(Receipt())) as endpoint, contextlib.ExitStack() as opened:
        for _ in range(4):
            opened.enter_context(socket.create_connection(("127.0.0.1", endpoint.port)))
        time.sleep(0.2)
        with socket.create_connection(("127.0.0.1", endpoint.port), timeout=60) as fifth:
            assert fifth.recv(1) == b""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            with contextlib.suppress(grpc.RpcError):
                assert endpoint.export(GOOD) == b""
                return
            time.sleep(0.1)
    pytest.fail("no call was answered after the silent connections ended")


def test_tls_uses_the_certificate_of_the_settings(tmp_path: pathlib.Path) -> None:
    """A client that trusts the authority can send."""
    certificate, key, authority = issued(tmp_path)
    root = authority.cert_pem.bytes()
    with grpc_over(StubCommitter(Receipt()), root=root, tls_cert_file=certificate, tls_key_file=key) as endpoint:
        assert endpoint.export(GOOD) == b""


def test_a_port_that_is_taken_is_reported() -> None:
    """In one line with the setting; a second server does not share the port."""

    async def open_twice(port: int) -> None:
        settings = load()
        GrpcServer(settings, Receiver(settings, StubCommitter(Receipt()), Metrics()), None, "127.0.0.1", port)  # type: ignore[arg-type]

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(LegatoError, match="LEGATO_OTLP_GRPC_PORT"):
            asyncio.run(open_twice(taken.getsockname()[1]))


def test_the_exporter_of_opentelemetry_can_send(store: Store, endpoint: GrpcEndpoint) -> None:
    """Spans of the SDK arrive; those that are not streams are acknowledged and ignored."""
    exporter = OTLPSpanExporter(endpoint=f"127.0.0.1:{endpoint.port}", insecure=True, compression=grpc.Compression.Gzip)
    before = endpoint.metrics.registry.get_sample_value("legato_received_spans_total") or 0
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("test").start_as_current_span("SELECT"):
        pass
    provider.shutdown()
    assert endpoint.metrics.registry.get_sample_value("legato_received_spans_total") == before + 1
    assert not streams(store)


class _FullOnce(StubCommitter):
    """Is overloaded at the first batch."""

    calls = 0

    def submit(self, batch: Batch, entry: Entry | None = None) -> Future[Receipt]:
        """Stand in for ``Committer.submit``."""
        self.calls += 1
        if self.calls == 1:
            raise Overloaded("full")
        return super().submit(batch, entry)


def test_the_exporter_of_opentelemetry_retries_after_an_overload() -> None:
    """Because of the RetryInfo: without one it drops what got RESOURCE_EXHAUSTED."""
    stub = _FullOnce(Receipt())
    with grpc_over(stub, retry_after_s=1) as endpoint:
        exporter = OTLPSpanExporter(endpoint=f"127.0.0.1:{endpoint.port}", insecure=True)
        span = TracerProvider().get_tracer("test").start_span("chat")
        span.end()
        assert isinstance(span, ReadableSpan)
        assert exporter.export([span]) is SpanExportResult.SUCCESS and stub.calls == 2
        exporter.shutdown()
