"""The OTLP endpoint for spans: replies, retries, readiness, counters, and many spans or senders at once."""

from __future__ import annotations

import asyncio
import gzip
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import httpx
import pytest
import zstandard
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from helpers.builders.spans import SECOND_NS, native_span, request, scope_of, steady_timeline
from helpers.dashboards.tables import rejected, streams
from helpers.platform.examples import examples
from helpers.servers.otlp import PROTOBUF, Endpoint, StubCommitter, accepted, endpoint_over, refused, spans_body
from helpers.servers.serving import served
from helpers.servers.waiting import until
from legato_ingest.errors import Overloaded, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.write.app import create_app
from legato_ingest.write.committer import Committer, Receipt

RAW = spans_body(4).SerializeToString()


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
def test_spans_in_every_encoding_are_stored(store: Store, endpoint: Endpoint, encoding: str, encode: Any) -> None:
    """They are acknowledged with an empty success and are stored by then."""
    body = spans_body(3)
    reply = accepted(endpoint.post(encode(body.SerializeToString()), encoding))
    assert not reply.HasField("partial_success")
    assert {row["span_id"] for row in streams(store)} == {span.span_id for span in scope_of(body).spans}


def test_parameters_of_the_content_type_are_ignored(endpoint: Endpoint) -> None:
    """Some senders add a charset."""
    accepted(endpoint.post(spans_body().SerializeToString(), content_type="Application/X-Protobuf; charset=utf-8"))


def test_an_empty_request_is_accepted(store: Store, endpoint: Endpoint) -> None:
    """A request without spans is not an error, compressed or not."""
    for content, encoding in ((b"", ""), (gzip.compress(b""), "gzip"), (zstandard.compress(b""), "zstd"), (b"", "gzip")):
        assert accepted(endpoint.post(content, encoding)).partial_success.rejected_spans == 0
    assert not streams(store)


def test_other_spans_are_acknowledged_and_not_stored(store: Store, endpoint: Endpoint) -> None:
    """A database call is neither stored nor rejected."""
    body = request()
    scope_of(body).spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name="SELECT", start_time_unix_nano=time.time_ns())
    assert not accepted(endpoint.post(body.SerializeToString())).HasField("partial_success")
    assert not streams(store) and not rejected(store)


def test_a_partial_success_has_number_and_reasons(store: Store, endpoint: Endpoint) -> None:
    """Two of five spans are rejected: the others are stored, and the reply has the number and the reasons."""
    body = spans_body(3, bad=1)
    native_span(body, {"legato.stream.ttfb": -1.0})
    partial = accepted(endpoint.post(body.SerializeToString())).partial_success
    assert partial.rejected_spans == 2
    assert "attribute" in partial.error_message and "timeline" in partial.error_message and "rejected" in partial.error_message
    assert len(streams(store)) == 3 and len(rejected(store)) == 2


@pytest.mark.parametrize(
    ("stub", "status", "code"),
    [
        (StubCommitter(StoreUnavailable("Code: 243")), 503, 14),
        (StubCommitter(Receipt(), raises=StoreUnavailable("the server is stopping")), 503, 14),
        (StubCommitter(Receipt(), raises=Overloaded("full")), 429, 8),
        (StubCommitter(RuntimeError("a secret")), 503, 14),
        (StubCommitter(Receipt(), raises=KeyError("a secret")), 503, 14),
        (StubCommitter(MemoryError()), 503, 14),
    ],
    ids=["unavailable", "stopping", "overloaded", "bug after", "bug before", "memory"],
)
def test_temporary_errors_are_retried(stub: StubCommitter, status: int, code: int) -> None:
    """429 and 503 have a Retry-After; an error of Legato's own is a 503, too. No reply contains the text of an exception."""
    with endpoint_over(stub, retry_after_s=7) as endpoint:
        reply = endpoint.post(spans_body().SerializeToString())
        assert "secret" not in refused(reply, status, code).message
        assert reply.headers["retry-after"] == "7"
        assert endpoint.client.get("/healthz").status_code == 200


def test_a_refusal_is_held_back() -> None:
    """The quotas name the time: that of a sender over its rate."""
    with endpoint_over(StubCommitter(Receipt(), raises=Overloaded("full", hold_s=0.5))) as endpoint:
        began_s = time.monotonic()
        refused(endpoint.post(spans_body().SerializeToString()), 429, 8)
        assert time.monotonic() - began_s >= 0.5


def test_bodies_in_flight_are_limited() -> None:
    """While unfinished bodies take up the limit, other requests get 429; afterwards they are accepted."""
    wait = threading.Event()
    content = spans_body(20).SerializeToString()
    with endpoint_over(StubCommitter(Receipt(), wait=wait), queue_bytes_max=2 * len(content)) as endpoint, ThreadPoolExecutor(8) as pool:
        # `submit` runs on the event loop, so the bodies in flight are those of senders that have not finished.
        held = [socket.create_connection(endpoint.address, timeout=60) for _ in range(2)]
        for connection in held:
            connection.sendall(endpoint.head(len(content)) + content[:-1])
        # A short body is refused as malformed until the bytes of the others have arrived.
        until(lambda: endpoint.post(b"\xff" * 3).status_code == 429)
        for reply in pool.map(lambda _: endpoint.post(content), range(4)):
            refused(reply, 429, 8)
        wait.set()
        for connection in held:
            connection.sendall(content[-1:])
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            connection.close()
        accepted(endpoint.post(content))


def test_readiness_depends_on_the_store() -> None:
    """The endpoint is alive in both cases."""
    for ready, status in ((True, 200), (False, 503)):
        with endpoint_over(StubCommitter(Receipt()), ready=ready) as endpoint:
            assert endpoint.client.get("/healthz").status_code == 200
            assert endpoint.client.get("/readyz").status_code == status


def test_health_checks_ask_the_store_once_a_second() -> None:
    """Anybody may ask, as often as they want."""
    asked = list[int]()

    def ready() -> bool:
        asked.append(1)
        return True

    app = create_app(load(), cast("Committer", StubCommitter(Receipt())), Metrics(), ready)
    with served(app) as url, ThreadPoolExecutor(8) as pool:
        began_s = time.monotonic()
        assert {reply.status_code for reply in pool.map(httpx.get, [f"{url}/readyz"] * 100)} == {200}
        assert len(asked) <= 2 + time.monotonic() - began_s


def test_requests_and_spans_are_counted(store: Store) -> None:
    """/metrics has requests by status, spans by outcome, bytes and times."""
    metrics = Metrics()
    committer = Committer(store, metrics, queue_bytes_max=2**26, chunks_max=10**6)
    with endpoint_over(committer, metrics) as endpoint:
        content = spans_body(3, bad=1).SerializeToString()
        endpoint.post(content)
        endpoint.post(content)
        endpoint.post(b"", content_type="text/plain")
        text = endpoint.client.get("/metrics").text
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


def test_other_methods_and_paths_do_not_accept_data(endpoint: Endpoint) -> None:
    """GET on the paths, and unknown paths, return neither a 200 nor a 5xx."""
    assert endpoint.client.get("/v1/traces").status_code == 405
    assert endpoint.client.get("/v1/metrics").status_code == 405
    for path in ("/docs", "/openapi.json", "/v1/traces/x"):
        assert endpoint.client.post(path, content=b"").status_code in (404, 405), path


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
    with endpoint_over(committer, metrics) as endpoint:
        assert not accepted(endpoint.post(gzip.compress(body.SerializeToString(), 1), "gzip")).HasField("partial_success")
    committer.close()
    assert store.select("SELECT count(), uniqExact(span_id), sum(length(dt_us)) FROM stream_revs") == [(count, count, 4 * count)]


def test_many_senders_at_once_lose_nothing(store: Store, endpoint: Endpoint) -> None:
    """60 requests are sent twice from 8 threads: each is acknowledged, and each span is stored once."""
    bodies = [spans_body(3).SerializeToString() for _ in range(60)]
    with ThreadPoolExecutor(8) as pool:
        for reply in pool.map(lambda content: endpoint.post(content), [*bodies, *bodies]):
            accepted(reply)
    assert store.select("SELECT count(), uniqExact(span_id) FROM stream_revs") == [(180, 180)]


def test_a_request_that_waits_at_the_end_of_the_process_gets_503() -> None:
    """The server cancels it after its grace; the sender is to retry."""

    class Waiting:
        """A receiver that never answers."""

        body_bytes_max, retry_after_s = 1_000, 7

        def __init__(self) -> None:
            self.asked = asyncio.Event()

        async def answer(self, call: object) -> None:
            self.asked.set()
            await asyncio.Event().wait()

    async def reply() -> httpx.Response:
        waiting = Waiting()
        app = create_app(load(), cast(Any, None), Metrics(), lambda: True, cast(Any, waiting))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://legato") as client:
            asking = asyncio.create_task(client.post("/v1/traces", content=RAW, headers={"content-type": PROTOBUF}))
            await waiting.asked.wait()
            asking.cancel()
            return await asking

    found = asyncio.run(reply())
    assert (found.status_code, found.headers["retry-after"]) == (503, "7")


_ENCODINGS = st.sampled_from(["", "gzip", "zstd", "identity", "br"])


@given(st.binary(max_size=300), _ENCODINGS, st.sampled_from([PROTOBUF, PROTOBUF, "application/json"]))
@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_body_has_a_defined_reply(lasting: Endpoint, content: bytes, encoding: str, content_type: str) -> None:
    """It is never a 5xx and never missing."""
    reply = lasting.post(content, encoding, content_type)
    assert reply.status_code in (200, 400, 413, 415)
    assert reply.headers["content-type"] == content_type


@given(st.data())
@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_request_has_a_defined_reply(lasting: Endpoint, data: st.DataObject) -> None:
    """Spans with some bytes changed are stored, rejected or refused, and the server keeps running."""
    raw = bytearray(RAW)
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    compress = data.draw(st.sampled_from(["", "gzip", "zstd"]))
    content = bytes(raw) if not compress else gzip.compress(raw) if compress == "gzip" else zstandard.compress(bytes(raw))
    reply = lasting.post(content, compress)
    assert reply.status_code in (200, 400), reply.content
    assert lasting.client.get("/healthz").status_code == 200
