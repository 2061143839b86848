"""The OTLP door: every reply has a defined status and a protobuf body, and whatever is sent, the server lives."""

from __future__ import annotations

import gzip
import random
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import httpx
import pytest
import zstandard
from google.rpc.status_pb2 import Status
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

from helpers.builders.points import gauge, histogram, metrics_request, total
from helpers.builders.spans import SECOND_NS, native_span, request, scope_of, steady_timeline
from helpers.dashboards.tables import rejected, streams
from helpers.platform.examples import examples
from helpers.servers.serving import served
from legato_ingest.errors import Overloaded, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Batch
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.write import app as otlp_endpoint
from legato_ingest.write.committer import Committer, Receipt

PROTOBUF = "application/x-protobuf"


class Door:
    """A running OTLP port and its client."""

    def __init__(self, url: str, metrics: Metrics) -> None:
        self.url = url
        self.client = httpx.Client(base_url=url, timeout=60)
        self.metrics = metrics

    def post(
        self, body: bytes, encoding: str = "", content_type: str | None = PROTOBUF, path: str = "/v1/traces", **more: Any
    ) -> httpx.Response:
        """Send a body to a path."""
        headers = {"content-encoding": encoding} if encoding else {}
        if content_type is not None:
            headers["content-type"] = content_type
        return self.client.post(path, content=body, headers=headers, **more)


@contextmanager
def door_of(committer: Committer, metrics: Metrics | None = None, ready: bool = True, **values: Any) -> Iterator[Door]:
    """The door over a committer, with these settings."""
    metrics = metrics or Metrics()
    app = otlp_endpoint.create_app(load(**values), committer, metrics, lambda: ready)
    with served(app) as url:
        door = Door(url, metrics)
        yield door
        door.client.close()


@pytest.fixture(scope="module")
def lasting(shared_store: Store) -> Iterator[Door]:
    """A door over the shared store for the whole module, with small limits."""
    metrics = Metrics()
    committer = Committer(shared_store, metrics, queue_bytes_max=2**26, chunks_max=10**6)
    with door_of(committer, metrics, body_bytes_max=200_000) as door:
        yield door
    committer.close()


@pytest.fixture
def door(store: Store, lasting: Door) -> Door:
    """The lasting door, the store emptied."""
    return lasting


def body_of(spans: int = 1, bad: int = 0) -> ExportTraceServiceRequest:
    """A request with good spans and some whose timeline is garbage."""
    body = request()
    for _ in range(spans):
        native_span(body)
    for _ in range(bad):
        native_span(body, {"legato.stream.timeline": b"\xff"})
    return body


def refused(reply: httpx.Response, status: int, code: int) -> Status:
    """The reply is this refusal, with a google.rpc.Status that says something."""
    assert reply.status_code == status, (reply.status_code, reply.content)
    assert reply.headers["content-type"] == PROTOBUF
    said = Status.FromString(reply.content)
    assert said.code == code and said.message
    assert ("retry-after" in reply.headers) == (status in (429, 503))
    return cast(Status, said)


def accepted(reply: httpx.Response) -> ExportTraceServiceResponse:
    """The reply is a 200 in protobuf."""
    assert reply.status_code == 200, (reply.status_code, reply.content)
    assert reply.headers["content-type"] == PROTOBUF
    response: ExportTraceServiceResponse = ExportTraceServiceResponse.FromString(reply.content)
    return response


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        ("", bytes),
        ("identity", bytes),
        ("gzip", gzip.compress),
        ("GZIP", gzip.compress),
        ("gzip", lambda raw: gzip.compress(raw[:100]) + gzip.compress(raw[100:])),
        ("zstd", zstandard.ZstdCompressor().compress),
        ("zstd", lambda raw: zstandard.ZstdCompressor().compress(raw[:100]) + zstandard.ZstdCompressor().compress(raw[100:])),
        ("zstd", lambda raw: zstandard.ZstdCompressor(write_content_size=False).compress(raw)),
    ],
    ids=["plain", "identity", "gzip", "GZIP", "gzip members", "zstd", "zstd frames", "zstd without size"],
)
def test_every_encoding_of_the_same_spans_is_stored(store: Store, door: Door, encoding: str, encode: Any) -> None:
    """Acknowledged with an empty success, and in the store by then."""
    body = body_of(3)
    reply = accepted(door.post(encode(body.SerializeToString()), encoding))
    assert not reply.HasField("partial_success")
    assert {row["span_id"] for row in streams(store)} == {span.span_id for span in scope_of(body).spans}


def test_parameters_of_the_content_type_are_ignored(door: Door) -> None:
    """Some senders name a charset."""
    accepted(door.post(body_of().SerializeToString(), content_type="Application/X-Protobuf; charset=utf-8"))


def test_an_empty_request_is_taken(store: Store, door: Door) -> None:
    """It holds no spans and is no error, compressed or not."""
    for content, encoding in ((b"", ""), (gzip.compress(b""), "gzip"), (zstandard.compress(b""), "zstd"), (b"", "gzip")):
        assert accepted(door.post(content, encoding)).partial_success.rejected_spans == 0
    assert not streams(store)


def test_spans_of_others_are_taken_and_not_stored(store: Store, door: Door) -> None:
    """A database call is acknowledged without a word."""
    body = request()
    scope_of(body).spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name="SELECT", start_time_unix_nano=time.time_ns())
    assert not accepted(door.post(body.SerializeToString())).HasField("partial_success")
    assert not streams(store) and not rejected(store)


def test_a_partial_success_counts_and_says_why(store: Store, door: Door) -> None:
    """Two of five are refused: the rest is stored, the reply says how many and for what reason."""
    body = body_of(3, bad=1)
    native_span(body, {"legato.stream.ttfb": -1.0})
    partial = accepted(door.post(body.SerializeToString())).partial_success
    assert partial.rejected_spans == 2
    assert "attribute" in partial.error_message and "timeline" in partial.error_message and "rejected" in partial.error_message
    assert len(streams(store)) == 3 and len(rejected(store)) == 2


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "", "application/x-protobuf-delimited", None, "x" * 5_000])
def test_another_content_type_is_415(door: Door, content_type: str | None) -> None:
    """Even with a body that would do."""
    refused(door.post(body_of().SerializeToString(), content_type=content_type), 415, 3)


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "x" * 300])
def test_another_encoding_is_415(door: Door, encoding: str) -> None:
    """It is named, and cut."""
    assert len(refused(door.post(b"abc", encoding), 415, 3).message) < 200


RAW = body_of(4).SerializeToString()


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        (b"\xff\xff\xff", ""),
        (b"{}", ""),
        (RAW[:-3], ""),
        (RAW, "gzip"),
        (RAW, "zstd"),
        (gzip.compress(RAW)[:-1], "gzip"),
        (gzip.compress(RAW)[:-9], "gzip"),
        (gzip.compress(RAW)[: len(RAW) // 9], "gzip"),
        (gzip.compress(RAW)[:5], "gzip"),
        (gzip.compress(RAW) + b"junk", "gzip"),
        (gzip.compress(RAW)[:-8] + bytes(8), "gzip"),
        (zlib.compress(RAW), "gzip"),
        (zstandard.compress(RAW) + b"junk", "zstd"),
        (zstandard.ZstdCompressor().compress(b"\xff" * 50), "zstd"),
        (gzip.compress(b"\xff" * 50), "gzip"),
    ],
)
def test_a_body_that_is_no_request_is_400(store: Store, door: Door, content: bytes, encoding: str) -> None:
    """Truncated, garbled or wrongly labelled: refused for good, nothing stored."""
    refused(door.post(content, encoding), 400, 3)
    assert not streams(store)


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
def test_every_truncation_of_a_compressed_body_is_400(store: Store, door: Door, encoding: str, compress: Any) -> None:
    """Wherever the connection broke, half of a request is never taken for the whole."""
    content = compress(RAW)
    answers = {
        cut: door.post(content[:cut], encoding).status_code for cut in [*range(1, 12), *range(12, len(content), 37), len(content) - 1]
    }
    assert set(answers.values()) == {400}, answers
    assert not streams(store)


@pytest.mark.parametrize("encoding", ["", "gzip", "zstd"])
def test_too_many_bytes_are_413(door: Door, encoding: str) -> None:
    """On the wire or after decompression, a bomb of many gigabytes too."""
    many = bytes(200_001)
    content = {"": many, "gzip": gzip.compress(many), "zstd": zstandard.compress(many)}[encoding]
    refused(door.post(content, encoding), 413, 8)


def test_a_bomb_costs_no_memory(door: Door) -> None:
    """1 GiB of zeros in 1 MB is refused as soon as the limit is passed."""
    bomb = zlib.compressobj(9, wbits=31)
    content = b"".join(bomb.compress(bytes(2**20)) for _ in range(190)) + bomb.flush()
    assert len(content) < 200_000
    started = time.perf_counter()
    refused(door.post(content, "gzip"), 413, 8)
    assert time.perf_counter() - started < 2


def test_a_zstd_frame_may_not_ask_for_a_huge_window(door: Door) -> None:
    """A window of 128 MiB is refused before it is allocated."""
    parameters = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    content = writer.compress(RAW) + writer.flush()
    refused(door.post(content, "zstd"), 400, 3)


def test_a_body_without_a_length_is_bounded(door: Door) -> None:
    """Chunked transfer is counted while it arrives."""

    def pieces() -> Iterator[bytes]:
        for _ in range(30):
            yield bytes(10_000)

    refused(door.client.post("/v1/traces", content=pieces(), headers={"content-type": PROTOBUF}), 413, 8)


def test_a_declared_length_is_believed_before_it_is_read(door: Door) -> None:
    """A sender that announces a terabyte gets its 413 at once."""
    host, port = door.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = f"POST /v1/traces HTTP/1.1\r\nHost: {host}\r\nContent-Type: {PROTOBUF}\r\nContent-Length: 1099511627776\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_a_sender_that_hangs_up_harms_nobody(store: Store, door: Door) -> None:
    """Half a body and a closed connection: the next request is served."""
    host, port = door.url.removeprefix("http://").split(":")
    for _ in range(5):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            head = f"POST /v1/traces HTTP/1.1\r\nHost: {host}\r\nContent-Type: {PROTOBUF}\r\nContent-Length: 5000\r\n\r\n"
            connection.sendall(head.encode() + bytes(100))
    accepted(door.post(body_of().SerializeToString()))
    assert len(streams(store)) == 1


class Stub:
    """A committer that answers as it is told."""

    def __init__(self, answer: Receipt | Exception, raises: Exception | None = None, wait: threading.Event | None = None) -> None:
        self._answer, self._raises, self._wait = answer, raises, wait

    def submit(self, batch: Batch) -> Future[Receipt]:
        """As Committer.submit."""
        if self._raises:
            raise self._raises
        if self._wait:
            self._wait.wait(30)
        future: Future[Receipt] = Future()
        if isinstance(self._answer, Exception):
            future.set_exception(self._answer)
        else:
            future.set_result(self._answer)
        return future


@pytest.mark.parametrize(
    ("stub", "status", "code"),
    [
        (Stub(StoreUnavailable("Code: 243")), 503, 14),
        (Stub(Receipt(), raises=StoreUnavailable("the server is stopping")), 503, 14),
        (Stub(Receipt(), raises=Overloaded("full")), 429, 8),
        (Stub(RuntimeError("a secret")), 503, 14),
        (Stub(Receipt(), raises=KeyError("a secret")), 503, 14),
        (Stub(MemoryError()), 503, 14),
    ],
    ids=["unavailable", "stopping", "overloaded", "bug after", "bug before", "memory"],
)
def test_what_may_pass_is_retried(stub: Stub, status: int, code: int) -> None:
    """429 and 503 say when to come back, an error of our own is a 503 too, and none tells what went on inside."""
    with door_of(cast(Committer, stub), retry_after_s=7) as door:
        reply = door.post(body_of().SerializeToString())
        assert "secret" not in refused(reply, status, code).message
        assert reply.headers["retry-after"] == "7"
        assert door.client.get("/healthz").status_code == 200


def test_bodies_in_flight_are_bounded() -> None:
    """While one request holds the bound, others get 429 and are told to come back; afterwards they are taken."""
    wait = threading.Event()
    content = body_of(20).SerializeToString()
    with door_of(cast(Committer, Stub(Receipt(), wait=wait)), queue_bytes_max=2 * len(content)) as door, ThreadPoolExecutor(8) as pool:
        # `submit` runs on the event loop, so the bodies are held by senders that have not finished instead.
        host, port = door.url.removeprefix("http://").split(":")
        head = f"POST /v1/traces HTTP/1.1\r\nHost: {host}\r\nContent-Type: {PROTOBUF}\r\nContent-Length: {len(content)}\r\n\r\n"
        held = [socket.create_connection((host, int(port)), timeout=10) for _ in range(2)]
        for connection in held:
            connection.sendall(head.encode() + content[:-1])
        time.sleep(0.3)
        for reply in pool.map(lambda _: door.post(content), range(4)):
            refused(reply, 429, 8)
        wait.set()
        for connection in held:
            connection.sendall(content[-1:])
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            connection.close()
        accepted(door.post(content))


def test_ready_means_that_the_store_answers() -> None:
    """Alive is not ready."""
    for ready, status in ((True, 200), (False, 503)):
        with door_of(cast(Committer, Stub(Receipt())), ready=ready) as door:
            assert door.client.get("/healthz").status_code == 200
            assert door.client.get("/readyz").status_code == status


def test_what_happened_is_counted(store: Store) -> None:
    """Requests by reply, spans by fate, bytes and times are at /metrics."""
    metrics = Metrics()
    committer = Committer(store, metrics, queue_bytes_max=2**26, chunks_max=10**6)
    with door_of(committer, metrics) as door:
        content = body_of(3, bad=1).SerializeToString()
        door.post(content)
        door.post(content)
        door.post(b"", content_type="text/plain")
        text = door.client.get("/metrics").text
    committer.close()
    for line in (
        'legato_requests_total{status="200"} 2.0',
        'legato_requests_total{status="415"} 1.0',
        f"legato_received_bytes_total {2 * len(content):.1f}",
        "legato_received_spans_total 8.0",
        "legato_stored_spans_total 3.0",
        "legato_stored_chunks_total 60.0",
        "legato_duplicate_spans_total 3.0",
        'legato_rejected_spans_total{reason="timeline"} 2.0',
        "legato_queue_bytes 0.0",
        "legato_request_seconds_count 3.0",
    ):
        assert line in text.splitlines(), line


def test_no_other_path_takes_spans(door: Door) -> None:
    """GET on the path, and paths nobody knows, are no 200 and no 5xx."""
    assert door.client.get("/v1/traces").status_code == 405
    assert door.client.get("/v1/metrics").status_code == 405
    for path in ("/v1/logs", "/docs", "/openapi.json", "/v1/traces/x"):
        assert door.client.post(path, content=b"").status_code in (404, 405), path


@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_many_spans_in_one_request(store: Store, count: int) -> None:
    """All are stored and acknowledged in one reply."""
    body = request()
    rng, start = random.Random(5), time.time_ns() - 60 * SECOND_NS
    pattern = native_span(body, {"legato.stream.timeline": steady_timeline(4)}, rng=rng, start_ns=start).SerializeToString()
    spans = scope_of(body).spans
    for _ in range(count - 1):
        span = spans.add()
        span.MergeFromString(pattern)
        span.trace_id, span.span_id = rng.randbytes(16), rng.randbytes(8)
    metrics = Metrics()
    committer = Committer(store, metrics, queue_bytes_max=2**28, chunks_max=10**6)
    with door_of(committer, metrics) as door:
        assert not accepted(door.post(gzip.compress(body.SerializeToString(), 1), "gzip")).HasField("partial_success")
    committer.close()
    assert store.select("SELECT count(), uniqExact(span_id), sum(length(dt_us)) FROM stream_revs") == [(count, count, 4 * count)]


def test_many_senders_at_once_lose_nothing(store: Store, door: Door) -> None:
    """Each of 60 requests from 8 threads is acknowledged and stored once."""
    bodies = [body_of(3).SerializeToString() for _ in range(60)]
    with ThreadPoolExecutor(8) as pool:
        for reply in pool.map(lambda content: door.post(content), [*bodies, *bodies]):
            accepted(reply)
    assert store.select("SELECT count(), uniqExact(span_id) FROM stream_revs") == [(180, 180)]


_ENCODINGS = st.sampled_from(["", "gzip", "zstd", "identity", "br"])


@given(st.binary(max_size=300), _ENCODINGS, st.sampled_from([PROTOBUF, PROTOBUF, "application/json"]))
@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_body_has_a_defined_answer(lasting: Door, content: bytes, encoding: str, content_type: str) -> None:
    """Never a 5xx, never silence."""
    reply = lasting.post(content, encoding, content_type)
    assert reply.status_code in (200, 400, 413, 415)
    assert reply.headers["content-type"] == PROTOBUF


@given(st.data())
@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_request_has_a_defined_answer(lasting: Door, data: st.DataObject) -> None:
    """Real spans with some bytes changed: they are stored, rejected or refused, and the server lives."""
    raw = bytearray(RAW)
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    compress = data.draw(st.sampled_from(["", "gzip", "zstd"]))
    content = bytes(raw) if not compress else gzip.compress(raw) if compress == "gzip" else zstandard.compress(bytes(raw))
    reply = lasting.post(content, compress)
    assert reply.status_code in (200, 400), reply.content
    assert lasting.client.get("/healthz").status_code == 200


METRICS = "/v1/metrics"


def metrics_of(points: int = 3, bad: int = 0) -> ExportMetricsServiceRequest:
    """A request with so many good points and some without a value."""
    body, now = metrics_request(), time.time_ns()
    for number in range(points):
        gauge(body, "system.cpu.utilization", number / 7, now - number, attributes={"cpu": number})
    for number in range(bad):
        gauge(body, "broken", None, now - number)
    return body


def samples(store: Store) -> list[Any]:
    """What is stored of samples."""
    return store.select("SELECT metric, value FROM node_samples ORDER BY metric, value")


@pytest.mark.parametrize(("encoding", "encode"), [("", bytes), ("gzip", gzip.compress), ("zstd", zstandard.compress)])
def test_metrics_are_stored_when_they_are_acknowledged(store: Store, door: Door, encoding: str, encode: Any) -> None:
    """Compressed or not, once however often they are sent; an empty request is taken."""
    content = encode(metrics_of().SerializeToString())
    for _ in range(3):
        reply = door.post(content, encoding, path=METRICS)
        assert (reply.status_code, reply.content, reply.headers["content-type"]) == (200, b"", PROTOBUF)
        assert len(samples(store)) == 3
    assert door.post(encode(b""), encoding, path=METRICS).status_code == 200


def test_a_partial_success_of_metrics_counts_points(store: Store, door: Door) -> None:
    """Two of five are refused, and the reply is one of metrics."""
    reply = door.post(metrics_of(3, bad=2).SerializeToString(), path=METRICS)
    partial = ExportMetricsServiceResponse.FromString(reply.content).partial_success
    assert partial.rejected_data_points == 2 and "2 data points rejected: value" in partial.error_message
    assert len(samples(store)) == 3 and [row["reason"] for row in rejected(store)] == ["value", "value"]


def test_metrics_are_refused_as_spans_are(store: Store, door: Door) -> None:
    """Another type, another encoding, no protobuf, too much: for good, and nothing is stored."""
    content = metrics_of().SerializeToString()
    refused(door.post(content, content_type="application/json", path=METRICS), 415, 3)
    refused(door.post(content, "br", path=METRICS), 415, 3)
    refused(door.post(content[:-1], path=METRICS), 400, 3)
    refused(door.post(gzip.compress(content)[:-1], "gzip", path=METRICS), 400, 3)
    refused(door.post(gzip.compress(bytes(200_001)), "gzip", path=METRICS), 413, 8)
    assert not samples(store)


@pytest.mark.parametrize(
    ("stub", "status", "code"),
    [
        (Stub(StoreUnavailable("Code: 243")), 503, 14),
        (Stub(Receipt(), raises=Overloaded("full")), 429, 8),
        (Stub(RuntimeError("a secret")), 503, 14),
    ],
    ids=["unavailable", "overloaded", "bug"],
)
def test_metrics_that_may_pass_are_retried(stub: Stub, status: int, code: int) -> None:
    """429 and 503, with the time to come back."""
    with door_of(cast(Committer, stub), retry_after_s=7) as door:
        reply = door.post(metrics_of().SerializeToString(), path=METRICS)
        assert "secret" not in refused(reply, status, code).message and reply.headers["retry-after"] == "7"


def test_both_signals_share_one_bound_of_bodies_in_flight() -> None:
    """A body of spans that is still arriving holds what metrics may not have."""
    content = metrics_of(20).SerializeToString()
    with door_of(cast(Committer, Stub(Receipt())), queue_bytes_max=len(content)) as door:
        host, port = door.url.removeprefix("http://").split(":")
        head = f"POST /v1/traces HTTP/1.1\r\nHost: {host}\r\nContent-Type: {PROTOBUF}\r\nContent-Length: 1000\r\n\r\n"
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(head.encode() + bytes(999))
            time.sleep(0.3)
            refused(door.post(content, path=METRICS), 429, 8)


def test_what_happened_to_points_is_counted(store: Store) -> None:
    """By fate and reason, apart from spans."""
    metrics = Metrics()
    committer = Committer(store, metrics, queue_bytes_max=2**26, chunks_max=10**6)
    body = metrics_of(3, bad=1)
    gauge(body, "gone", None, time.time_ns(), flags=1)
    with door_of(committer, metrics) as door:
        for _ in range(2):
            door.post(body.SerializeToString(), path=METRICS)
        text = door.client.get("/metrics").text
    committer.close()
    for line in (
        'legato_requests_total{status="200"} 2.0',
        'legato_points_total{outcome="received"} 10.0',
        'legato_points_total{outcome="ignored"} 2.0',
        'legato_points_total{outcome="stored"} 3.0',
        'legato_points_total{outcome="duplicate"} 3.0',
        'legato_rejected_points_total{reason="value"} 2.0',
        "legato_received_spans_total 0.0",
        "legato_ignored_spans_total 0.0",
    ):
        assert line in text.splitlines(), line


_POINTS = metrics_request()
for _number in range(3):
    gauge(_POINTS, "a", _number, time.time_ns(), attributes={"n": _number})
    total(_POINTS, "b", 0.5, time.time_ns() - _number)
    histogram(_POINTS, "c", [1.0], [1, 2], time.time_ns() - _number)


@given(st.data())
@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_metrics_have_a_defined_answer(lasting: Door, data: st.DataObject) -> None:
    """Real points with some bytes changed, or garbage: stored, rejected or refused, and the server lives."""
    raw = bytearray(data.draw(st.one_of(st.binary(max_size=200), st.just(_POINTS.SerializeToString()))))
    for _ in range(data.draw(st.integers(0, 6)) if raw else 0):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    reply = lasting.post(bytes(raw), path=METRICS)
    assert reply.status_code in (200, 400), reply.content
    assert lasting.client.get("/healthz").status_code == 200


_NUMBERS = st.one_of(st.floats(), st.integers(-(2**63), 2**63 - 1), st.none())
_NANOSECONDS = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 10**12).map(lambda age: time.time_ns() - age))
_VALUES = st.one_of(
    st.text(max_size=5), st.booleans(), st.integers(-9, 9), st.floats(), st.binary(max_size=3), st.lists(st.text(max_size=2), max_size=2)
)
_ATTRIBUTES = st.dictionaries(st.text(max_size=5), _VALUES, max_size=3)
_COUNTS = st.lists(st.integers(0, 2**64 - 1), max_size=4)


@given(st.data())
@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_points_cost_no_neighbour_and_a_retry_nothing(lasting: Door, shared_store: Store, data: st.DataObject) -> None:
    """Points of any numbers, times, flags and attributes between good ones: those are stored, and nothing twice when all is sent again."""
    run = f"run-{time.monotonic_ns()}"
    body, now = metrics_request({"run": run}), time.time_ns()
    for number in range(data.draw(st.integers(1, 5))):
        gauge(body, "neighbour", number, now - number)
        at, attributes = data.draw(_NANOSECONDS), data.draw(_ATTRIBUTES)
        more = {"flags": data.draw(st.integers(0, 3)), "start_time_unix_nano": data.draw(st.sampled_from([0, at, now]))}
        name = data.draw(st.sampled_from(["any", "", "neighbour's", "\0"]))
        if data.draw(st.booleans()):
            data.draw(st.sampled_from([gauge, total]))(body, name, data.draw(_NUMBERS), at, attributes=attributes, **more)
        else:
            bounds, counts = data.draw(st.lists(st.floats(), max_size=4)), data.draw(_COUNTS)
            count = data.draw(st.sampled_from([0, 1, 2**64 - 1]))
            histogram(body, name, bounds, counts, at, count=count, sum=data.draw(st.floats()), attributes=attributes, **more)
    found, columns = [], "countIf(metric = 'neighbour'), count(), uniqExact(series, recorded_at)"
    for _ in range(2):
        assert lasting.post(body.SerializeToString(), path=METRICS).status_code == 200
        found += shared_store.select(f"SELECT {columns} FROM node_samples WHERE attributes['run'] = '{run}'")
    neighbours = sum(metric.name == "neighbour" for metric in body.resource_metrics[0].scope_metrics[0].metrics)
    assert found[0] == found[1] and found[0][0] == neighbours and found[0][1] == found[0][2]
