"""What the gateway does with requests: the built Collector with `collector/`'s files, before a receiver that answers as it is told."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Iterator

import grpc
import httpx
import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

from helpers.builders.spans import native_span, request
from helpers.platform.disks import can_mount, small_disk
from helpers.servers.collector import Collector, run
from helpers.servers.receiver import Receiver, receiver
from helpers.servers.waiting import eventually

PROTOBUF = {"content-type": "application/x-protobuf"}
ONE, OTHER = {"authorization": "Bearer one"}, {"authorization": "Bearer other"}


@pytest.fixture
def behind() -> Iterator[Receiver]:
    with receiver() as kept:
        yield kept


@pytest.fixture
def tokens(tmp_path: pathlib.Path) -> pathlib.Path:
    """A file of two tokens."""
    path = tmp_path / "tokens"
    path.write_text("one\nother\n")
    return path


def body() -> ExportTraceServiceRequest:
    """A request of one stream."""
    out = request()
    native_span(out)
    return out


def post(collector: Collector, content: bytes | None = None, headers: dict[str, str] | None = None) -> httpx.Response:
    """Send one request over HTTP."""
    given = {**PROTOBUF, **(headers or {})}
    return httpx.post(f"{collector.http}/v1/traces", content=content or body().SerializeToString(), headers=given, timeout=30)


def traces(contents: Iterable[bytes]) -> list[bytes]:
    """The trace ids in these bodies, in order."""
    requests = map(ExportTraceServiceRequest.FromString, contents)
    return sorted(span.trace_id for each in requests for rs in each.resource_spans for ss in rs.scope_spans for span in ss.spans)


def call(collector: Collector, message: ExportTraceServiceRequest, metadata: tuple[tuple[str, str], ...] = ()) -> None:
    """Send one request over gRPC. Raises ``grpc.RpcError``."""
    with grpc.insecure_channel(collector.grpc) as channel:
        export = channel.unary_unary(
            "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            request_serializer=ExportTraceServiceRequest.SerializeToString,
            response_deserializer=ExportTraceServiceResponse.FromString,
        )
        export(message, timeout=10, metadata=metadata)


def otlp_json(message: ExportTraceServiceRequest) -> dict[str, object]:
    """As OTLP's JSON has it: ids in hexadecimal."""
    out = MessageToDict(message)
    for span, written in zip(
        message.resource_spans[0].scope_spans[0].spans, out["resourceSpans"][0]["scopeSpans"][0]["spans"], strict=True
    ):
        written["traceId"], written["spanId"] = span.trace_id.hex(), span.span_id.hex()
        written["kind"] = int(span.kind)
    return dict(out)


def test_one_request_is_one_request_however_it_came(tmp_path: pathlib.Path, behind: Receiver) -> None:
    """Over HTTP, as JSON and over gRPC the same spans become the same bytes, each request for itself."""
    message = body()
    # The Collector writes an empty status where there was none.
    message.resource_spans[0].scope_spans[0].spans[0].status.SetInParent()
    with run(tmp_path, "gateway.yaml", LEGATO_INGEST_URL=behind.url) as collector:
        assert post(collector, message.SerializeToString()).status_code == 200
        assert httpx.post(f"{collector.http}/v1/traces", json=otlp_json(message)).status_code == 200
        call(collector, message)
        assert eventually(lambda: len(behind.came) == 3)
    assert len({each.body for each in behind.came}) == 1
    assert ExportTraceServiceRequest.FromString(behind.came[0].body) == message


def test_a_backlog_outlives_a_crash_byte_for_byte_with_its_token(tmp_path: pathlib.Path, behind: Receiver, tokens: pathlib.Path) -> None:
    """Requests of two tenants that were refused, killed and started again come with the bytes and the token that they had."""
    settings = {"LEGATO_INGEST_URL": behind.url, "LEGATO_COLLECTOR_TOKENS_FILE": str(tokens)}
    behind.status = 503
    with run(tmp_path, "gateway.yaml", "tokens.yaml", **settings) as collector:
        for headers in (ONE, OTHER, ONE):
            assert post(collector, headers=headers).status_code == 200
        assert eventually(lambda: len(behind.came) >= 3)
        first = {each.body: each.authorization for each in behind.came}
        collector.kill()
        assert sorted(first.values()) == ["Bearer one", "Bearer one", "Bearer other"]
        behind.status = 200
        collector.start()
        assert eventually(lambda: len(behind.taken) == 3)
    assert {each.body: each.authorization for each in behind.taken} == first


def test_a_token_is_wanted_on_both_protocols(tmp_path: pathlib.Path, behind: Receiver, tokens: pathlib.Path) -> None:
    """None or a wrong one: 401 or UNAUTHENTICATED, and nothing goes on."""
    settings = {"LEGATO_INGEST_URL": behind.url, "LEGATO_COLLECTOR_TOKENS_FILE": str(tokens)}
    with run(tmp_path, "gateway.yaml", "tokens.yaml", **settings) as collector:
        assert [post(collector, headers=headers).status_code for headers in ({}, {"authorization": "Bearer no"})] == [401, 401]
        for metadata in ((), (("authorization", "Bearer no"),)):
            with pytest.raises(grpc.RpcError) as refused:
                call(collector, body(), metadata)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        call(collector, body(), (("authorization", "Bearer other"),))
        assert eventually(lambda: behind.taken)
        assert [each.authorization for each in behind.came] == ["Bearer other"]


def test_tokens_change_without_a_restart(tmp_path: pathlib.Path, behind: Receiver, tokens: pathlib.Path) -> None:
    """A new file renamed over the old one adds a token, then takes one away; both are valid in between."""
    settings = {"LEGATO_INGEST_URL": behind.url, "LEGATO_COLLECTOR_TOKENS_FILE": str(tokens)}

    def renew(text: str) -> None:
        beside = tokens.with_name("beside")
        beside.write_text(text)
        os.replace(beside, tokens)

    with run(tmp_path, "gateway.yaml", "tokens.yaml", **settings) as collector:
        renew("one\nnew\n")
        assert eventually(lambda: post(collector, headers={"authorization": "Bearer new"}).status_code == 200)
        assert post(collector, headers=ONE).status_code == 200
        renew("new\n")
        assert eventually(lambda: post(collector, headers=ONE).status_code == 401)
        assert post(collector, headers={"authorization": "Bearer new"}).status_code == 200


def test_a_full_queue_refuses_at_once_and_keeps_what_it_took(tmp_path: pathlib.Path, behind: Receiver) -> None:
    """503 for what has no room, nothing of it is sent later, and all that was taken arrives."""
    behind.status = 503
    settings = {"LEGATO_INGEST_URL": behind.url, "LEGATO_COLLECTOR_QUEUE_BYTES": "20000"}
    with run(tmp_path, "gateway.yaml", **settings) as collector:
        sent = [body().SerializeToString() for _ in range(60)]
        taken = [content for content in sent if post(collector, content).status_code == 200]
        assert 0 < len(taken) < len(sent)
        with pytest.raises(grpc.RpcError) as refused:
            call(collector, body())
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        behind.status = 200
        assert eventually(lambda: len(behind.taken) == len(taken))
        assert collector.metric("otelcol_exporter_queue_size") == 0
    assert traces(each.body for each in behind.taken) == traces(taken)


@pytest.mark.skipif(not can_mount(), reason="no disk of its own can be mounted here")
@pytest.mark.parametrize("size", [20_000, 500_000])
def test_a_full_disk_refuses_and_loses_nothing(tmp_path: pathlib.Path, behind: Receiver, size: int) -> None:
    """On a disk that is full before the queue is: 503 for what has no room; what was taken arrives, also over a restart."""
    behind.status = 503
    queue = tmp_path / "queue"
    queue.mkdir()
    with run(tmp_path, "gateway.yaml", prefix=small_disk(queue, "24m"), LEGATO_INGEST_URL=behind.url) as collector:
        taken, refused = [], 0
        while refused < 20:
            message = request()
            native_span(message, {"legato.stream.timeline": os.urandom(size)})
            status = post(collector, message.SerializeToString()).status_code
            assert status in (200, 503)
            refused += status == 503
            taken += [message.SerializeToString()] if status == 200 else []
        behind.status = 200
        wanted = set(traces(taken))
        assert eventually(lambda: wanted == set(traces(each.body for each in behind.taken)), 60), len(wanted)


def test_two_on_one_folder_are_one_too_many(tmp_path: pathlib.Path, behind: Receiver) -> None:
    """The second ends with an error that names the lock's time-out; the first goes on."""
    with run(tmp_path, "gateway.yaml", LEGATO_INGEST_URL=behind.url) as first:
        second = Collector(tmp_path, ["gateway.yaml"], LEGATO_INGEST_URL=behind.url)
        second.log = tmp_path / "second.log"
        second.spawn()
        assert second.process.wait(30) != 0
        assert "timeout" in second.log.read_text()
        assert post(first).status_code == 200
        assert eventually(lambda: behind.taken)


def test_a_stop_waits_for_what_is_under_way(tmp_path: pathlib.Path, behind: Receiver) -> None:
    """SIGTERM with a backlog ends in time, with status 0, and the backlog is there afterwards."""
    behind.status = 503
    with run(tmp_path, "gateway.yaml", LEGATO_INGEST_URL=behind.url) as collector:
        assert post(collector).status_code == 200
        assert eventually(lambda: behind.came)
        assert collector.stop() == 0
        behind.status = 200
        collector.start()
        assert eventually(lambda: len(behind.taken) == 1)


@pytest.mark.parametrize(("status", "told"), [(200, 200), (429, 429), (503, 503), (400, 400)])
def test_the_door_without_a_queue_says_what_the_ingest_says(tmp_path: pathlib.Path, behind: Receiver, status: int, told: int) -> None:
    """Its 200 is the ingest's 200; what is retryable stays retryable, what is final stays final."""
    behind.status = status
    with run(tmp_path, "gateway-sync.yaml", LEGATO_INGEST_URL=behind.url) as collector:
        assert post(collector).status_code == told
    assert len(behind.came) == 1


def test_a_node_sends_with_its_own_token(tmp_path: pathlib.Path, behind: Receiver, tokens: pathlib.Path) -> None:
    """The node's Collector asks nobody of its own host for a token, and gives its own to the gateway."""
    tokens.write_text("node\n")
    with run(tmp_path, "agent.yaml", LEGATO_GATEWAY_URL=behind.url, LEGATO_TOKEN_FILE=str(tokens)) as collector:
        assert post(collector).status_code == 200
        assert eventually(lambda: behind.taken)
    assert behind.taken[0].authorization == "Bearer node"


def test_each_trace_goes_to_one_gateway(tmp_path: pathlib.Path) -> None:
    """Both get some, every stream arrives once, and what has one trace id meets, whenever it was sent."""
    with receiver() as one, receiver() as two:
        gateways = [Collector(tmp_path / name, ["gateway.yaml"], LEGATO_INGEST_URL=kept.url) for name, kept in (("a", one), ("b", two))]
        for gateway in gateways:
            gateway.start()
        settings = {"LEGATO_GATEWAYS": str([gateway.grpc for gateway in gateways]), "LEGATO_GATEWAYS_INSECURE": "true"}
        ids = [os.urandom(16) for _ in range(40)]
        with run(tmp_path / "balancer", "loadbalancing.yaml", **settings) as balancer:
            for _ in range(2):
                message = request()
                for trace_id in ids:
                    native_span(message, trace_id=trace_id)
                assert post(balancer, message.SerializeToString()).status_code == 200

            def came(*all_kept: Receiver) -> list[bytes]:
                return traces(each.body for kept in all_kept for each in kept.taken)

            assert eventually(lambda: len(came(one, two)) == 80)
        for gateway in gateways:
            gateway.stop()
    assert set(came(one)).isdisjoint(came(two)) and came(one) and came(two)
    assert came(one, two) == sorted(ids * 2)
