"""The gateway's handling of requests: the built Collector with the files of `collector/`, in front of a scripted receiver."""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
from collections.abc import Iterable, Iterator, Sequence

import grpc
import httpx
import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

from helpers.builders.points import gauge, metrics_request
from helpers.builders.spans import native_span, request
from helpers.platform.disks import can_mount, small_disk
from helpers.servers.collector import Collector, run
from helpers.servers.receiver import Receiver, receiver
from helpers.servers.waiting import eventually

PROTOBUF = {"content-type": "application/x-protobuf"}
ONE, OTHER = {"authorization": "Bearer one"}, {"authorization": "Bearer other"}


@pytest.fixture
def behind() -> Iterator[Receiver]:
    """The receiver behind the Collector."""
    with receiver() as kept:
        yield kept


@pytest.fixture
def tokens(tmp_path: pathlib.Path) -> pathlib.Path:
    """A file with two tokens."""
    path = tmp_path / "tokens"
    path.write_text("one\nother\n")
    return path


def body() -> ExportTraceServiceRequest:
    """A request with one stream."""
    out = request()
    native_span(out)
    return out


def streams(ids: Iterable[bytes]) -> bytes:
    """A request with one stream of each trace."""
    out = request()
    for trace_id in ids:
        native_span(out, trace_id=trace_id)
    return bytes(out.SerializeToString())


def samples() -> bytes:
    """A request with one sample."""
    out = metrics_request({"service.name": "engine"})
    gauge(out, "vllm:num_requests_running", 1, time.time_ns())
    return bytes(out.SerializeToString())


def post(
    collector: Collector, content: bytes | None = None, headers: dict[str, str] | None = None, path: str = "/v1/traces"
) -> httpx.Response:
    """Send one request over HTTP."""
    given = {**PROTOBUF, **(headers or {})}
    return httpx.post(f"{collector.http}{path}", content=content or body().SerializeToString(), headers=given, timeout=30)


def traces(contents: Iterable[bytes]) -> list[bytes]:
    """The trace ids in these bodies, sorted."""
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
    """The request in OTLP/JSON, with ids in hexadecimal (the OTLP specification, JSON Protobuf Encoding)."""
    out = MessageToDict(message)
    for span, written in zip(
        message.resource_spans[0].scope_spans[0].spans, out["resourceSpans"][0]["scopeSpans"][0]["spans"], strict=True
    ):
        written["traceId"], written["spanId"] = span.trace_id.hex(), span.span_id.hex()
        written["kind"] = int(span.kind)
    return dict(out)


def test_each_request_is_forwarded_alone_over_every_protocol(tmp_path: pathlib.Path, behind: Receiver) -> None:
    """The same spans over HTTP with protobuf, HTTP with JSON and gRPC become the same bytes, one request for each request."""
    message = body()
    # The Collector adds an empty status to a span without one.
    message.resource_spans[0].scope_spans[0].spans[0].status.SetInParent()
    with run(tmp_path, "gateway.yaml", LEGATO_INGEST_URL=behind.url) as collector:
        assert post(collector, message.SerializeToString()).status_code == 200
        assert httpx.post(f"{collector.http}/v1/traces", json=otlp_json(message)).status_code == 200
        call(collector, message)
        assert eventually(lambda: len(behind.received) == 3)
    assert len({each.body for each in behind.received}) == 1
    assert ExportTraceServiceRequest.FromString(behind.received[0].body) == message


def test_a_backlog_survives_a_crash_unchanged_with_its_tokens(tmp_path: pathlib.Path, behind: Receiver, tokens: pathlib.Path) -> None:
    """Queued requests of two tenants are sent after SIGKILL and a restart with the same bytes and the same token."""
    settings = {"LEGATO_INGEST_URL": behind.url, "LEGATO_COLLECTOR_TOKENS_FILE": str(tokens)}
    behind.status = 503
    with run(tmp_path, "gateway.yaml", "tokens.yaml", **settings) as collector:
        for headers in (ONE, OTHER, ONE):
            assert post(collector, headers=headers).status_code == 200
        assert eventually(lambda: len(behind.received) >= 3)
        first = {each.body: each.authorization for each in behind.received}
        collector.kill()
        assert sorted(first.values()) == ["Bearer one", "Bearer one", "Bearer other"]
        behind.status = 200
        collector.start()
        assert eventually(lambda: len(behind.accepted) == 3)
    assert {each.body: each.authorization for each in behind.accepted} == first


def test_a_token_is_required_on_both_protocols(tmp_path: pathlib.Path, behind: Receiver, tokens: pathlib.Path) -> None:
    """No token or a wrong one gives 401 or UNAUTHENTICATED, and nothing is forwarded."""
    settings = {"LEGATO_INGEST_URL": behind.url, "LEGATO_COLLECTOR_TOKENS_FILE": str(tokens)}
    with run(tmp_path, "gateway.yaml", "tokens.yaml", **settings) as collector:
        assert [post(collector, headers=headers).status_code for headers in ({}, {"authorization": "Bearer no"})] == [401, 401]
        for metadata in ((), (("authorization", "Bearer no"),)):
            with pytest.raises(grpc.RpcError) as rejected:
                call(collector, body(), metadata)
            assert rejected.value.code() is grpc.StatusCode.UNAUTHENTICATED
        call(collector, body(), (("authorization", "Bearer other"),))
        assert eventually(lambda: behind.accepted)
        assert [each.authorization for each in behind.received] == ["Bearer other"]


def test_tokens_change_without_a_restart(tmp_path: pathlib.Path, behind: Receiver, tokens: pathlib.Path) -> None:
    """A new file renamed over the old one adds a token; a second one removes the old token. Both are valid in between."""
    settings = {"LEGATO_INGEST_URL": behind.url, "LEGATO_COLLECTOR_TOKENS_FILE": str(tokens)}

    def renew(text: str) -> None:
        renewed = tokens.with_name("renewed")
        renewed.write_text(text)
        os.replace(renewed, tokens)

    with run(tmp_path, "gateway.yaml", "tokens.yaml", **settings) as collector:
        renew("one\nnew\n")
        assert eventually(lambda: post(collector, headers={"authorization": "Bearer new"}).status_code == 200)
        assert post(collector, headers=ONE).status_code == 200
        renew("new\n")
        assert eventually(lambda: post(collector, headers=ONE).status_code == 401)
        assert post(collector, headers={"authorization": "Bearer new"}).status_code == 200


def test_a_full_queue_rejects_at_once_and_keeps_accepted_requests(tmp_path: pathlib.Path, behind: Receiver) -> None:
    """Requests without room get 503 and are never sent; all accepted requests arrive."""
    behind.status = 503
    settings = {"LEGATO_INGEST_URL": behind.url, "LEGATO_COLLECTOR_QUEUE_BYTES": "20000"}
    with run(tmp_path, "gateway.yaml", **settings) as collector:
        sent = [body().SerializeToString() for _ in range(60)]
        accepted = [content for content in sent if post(collector, content).status_code == 200]
        assert 0 < len(accepted) < len(sent)
        with pytest.raises(grpc.RpcError) as rejected:
            call(collector, body())
        assert rejected.value.code() is grpc.StatusCode.UNAVAILABLE
        behind.status = 200
        assert eventually(lambda: len(behind.accepted) == len(accepted))
        # The receiver counts a request before the Collector has read its reply and removed it from the queue.
        assert eventually(lambda: collector.metric("otelcol_exporter_queue_size") == 0)
    assert traces(each.body for each in behind.accepted) == traces(accepted)


@pytest.mark.skipif(not can_mount(), reason="this user may not mount a separate disk")
@pytest.mark.parametrize("size", [100_000, pytest.param(500_000, marks=pytest.mark.long)])
def test_a_full_disk_rejects_and_loses_nothing(tmp_path: pathlib.Path, behind: Receiver, size: int) -> None:
    """The disk fills before the queue does: requests without room get 503, and all accepted requests arrive."""
    behind.status = 503
    queue = tmp_path / "queue"
    queue.mkdir()
    with run(tmp_path, "gateway.yaml", prefix=small_disk(queue, "24m"), LEGATO_INGEST_URL=behind.url) as collector:
        accepted, rejected = [], 0
        while rejected < 20:
            message = request()
            native_span(message, {"legato.stream.timeline": os.urandom(size)})
            status = post(collector, message.SerializeToString()).status_code
            assert status in (200, 503)
            rejected += status == 503
            accepted += [message.SerializeToString()] if status == 200 else []
        behind.status = 200
        wanted, arrived, read = set(traces(accepted)), set[bytes](), 0

        def all_arrived() -> bool:
            nonlocal read
            new = behind.accepted[read:]
            read += len(new)
            arrived.update(traces(each.body for each in new))
            return wanted <= arrived

        assert eventually(all_arrived, 60), len(wanted - arrived)
        assert arrived == wanted


def test_a_second_collector_on_the_same_folder_ends(tmp_path: pathlib.Path, behind: Receiver) -> None:
    """The second Collector ends with an error that names the lock's time-out; the first one keeps working."""
    with run(tmp_path, "gateway.yaml", LEGATO_INGEST_URL=behind.url) as first:
        second = Collector(tmp_path, ["gateway.yaml"], LEGATO_INGEST_URL=behind.url)
        second.log = tmp_path / "second.log"
        second.spawn()
        assert second.process.wait(30) != 0
        assert "timeout" in second.log.read_text()
        assert post(first).status_code == 200
        assert eventually(lambda: behind.accepted)


def test_a_stop_keeps_the_backlog(tmp_path: pathlib.Path, behind: Receiver) -> None:
    """SIGTERM with a backlog ends the Collector within 60 s with status 0, and the next start sends the backlog."""
    behind.status = 503
    with run(tmp_path, "gateway.yaml", LEGATO_INGEST_URL=behind.url) as collector:
        assert post(collector).status_code == 200
        assert eventually(lambda: behind.received)
        assert collector.stop() == 0
        behind.status = 200
        collector.start()
        assert eventually(lambda: len(behind.accepted) == 1)


@pytest.mark.parametrize(("status", "returned"), [(200, 200), (429, 429), (503, 503), (400, 400)])
def test_the_synchronous_gateway_returns_the_ingests_status(tmp_path: pathlib.Path, behind: Receiver, status: int, returned: int) -> None:
    """Its 200 is the ingest's 200; a retryable status stays retryable, a final one stays final."""
    behind.status = status
    with run(tmp_path, "gateway-sync.yaml", LEGATO_INGEST_URL=behind.url) as collector:
        assert post(collector).status_code == returned
    assert len(behind.received) == 1


def test_a_node_sends_with_its_own_token(tmp_path: pathlib.Path, behind: Receiver, tokens: pathlib.Path) -> None:
    """The node's Collector needs no token from local clients and sends its own token to the gateway."""
    tokens.write_text("node\n")
    with run(tmp_path, "agent.yaml", LEGATO_GATEWAY_URL=behind.url, LEGATO_TOKEN_FILE=str(tokens)) as collector:
        assert post(collector).status_code == 200
        assert eventually(lambda: behind.accepted)
    assert behind.accepted[0].authorization == "Bearer node"


@contextlib.contextmanager
def gateways(
    folder: pathlib.Path, *behind: Receiver, layers: Sequence[str] = ("gateway.yaml",), **settings: str
) -> Iterator[list[Collector]]:
    """Run a gateway with these files in front of each receiver, and yield them."""
    made = [Collector(folder / f"gateway-{number}", layers, LEGATO_INGEST_URL=each.url, **settings) for number, each in enumerate(behind)]
    with contextlib.ExitStack() as stack:
        for each in made:
            each.start()
            stack.callback(each.stop)
        yield made


def in_front_of(made: Sequence[Collector]) -> dict[str, str]:
    """The settings of a balancer in front of these gateways."""
    return {"LEGATO_GATEWAYS": str([each.grpc for each in made]), "LEGATO_GATEWAYS_INSECURE": "true"}


def test_each_trace_goes_to_one_gateway(tmp_path: pathlib.Path) -> None:
    """Both gateways get traces, every span arrives once, and all spans of a trace reach the same gateway, also from later requests."""
    with receiver() as one, receiver() as two, gateways(tmp_path, one, two) as made:
        ids = [os.urandom(16) for _ in range(40)]
        with run(tmp_path / "balancer", "loadbalancing.yaml", **in_front_of(made)) as balancer:
            for _ in range(2):
                assert post(balancer, streams(ids)).status_code == 200

            def arrived(*receivers: Receiver) -> list[bytes]:
                return traces(each.body for kept in receivers for each in kept.accepted)

            assert eventually(lambda: len(arrived(one, two)) == 80)
    assert set(arrived(one)).isdisjoint(arrived(two)) and arrived(one) and arrived(two)
    assert arrived(one, two) == sorted(ids * 2)


def test_a_balancer_sends_each_request_with_its_token(tmp_path: pathlib.Path, tokens: pathlib.Path) -> None:
    """Gateways that require tokens get those of the clients, over both protocols and for both signals. Without a token it refuses."""
    settings = {"LEGATO_COLLECTOR_TOKENS_FILE": str(tokens)}
    with receiver() as one, receiver() as two, gateways(tmp_path, one, two, layers=("gateway.yaml", "tokens.yaml"), **settings) as made:
        with run(tmp_path / "balancer", "loadbalancing.yaml", "tokens-loadbalancing.yaml", **in_front_of(made), **settings) as balancer:
            assert [post(balancer, headers=headers).status_code for headers in ({}, {"authorization": "Bearer no"})] == [401, 401]
            with pytest.raises(grpc.RpcError) as rejected:
                call(balancer, body())
            assert rejected.value.code() is grpc.StatusCode.UNAUTHENTICATED
            ids = {"Bearer one": [os.urandom(16) for _ in range(40)], "Bearer other": [os.urandom(16) for _ in range(40)]}
            assert post(balancer, streams(ids["Bearer one"]), ONE).status_code == 200
            call(balancer, ExportTraceServiceRequest.FromString(streams(ids["Bearer other"])), (("authorization", "Bearer other"),))
            assert post(balancer, samples(), OTHER, "/v1/metrics").status_code == 200

            def arrived(token: str, path: str = "/v1/traces") -> list[bytes]:
                return [each.body for kept in (one, two) for each in kept.accepted if (each.authorization, each.path) == (token, path)]

            assert eventually(
                lambda: all(traces(arrived(token)) == sorted(ids[token]) for token in ids) and arrived("Bearer other", "/v1/metrics")
            )
    assert one.accepted and two.accepted and len(one.received + two.received) == 5


def test_a_balancers_backlog_keeps_its_tokens(tmp_path: pathlib.Path, behind: Receiver, tokens: pathlib.Path) -> None:
    """Requests of two tenants that waited for the gateway are sent with their own tokens, also after SIGKILL and a restart."""
    settings = {"LEGATO_COLLECTOR_TOKENS_FILE": str(tokens)}
    with gateways(tmp_path, behind, layers=("gateway.yaml", "tokens.yaml"), **settings) as (gateway,):
        gateway.kill()
        with run(
            tmp_path / "balancer", "loadbalancing.yaml", "tokens-loadbalancing.yaml", **in_front_of([gateway]), **settings
        ) as balancer:
            ids = {token: os.urandom(16) for token in ("one", "other")}
            for token, trace_id in ids.items():
                assert post(balancer, streams([trace_id]), {"authorization": f"Bearer {token}"}).status_code == 200
            balancer.kill()
            gateway.start()
            balancer.start()
            assert eventually(lambda: len(behind.accepted) == 2)
    assert {each.authorization: traces([each.body]) for each in behind.accepted} == {
        f"Bearer {token}": [each] for token, each in ids.items()
    }
