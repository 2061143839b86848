"""The OTLP endpoint over HTTP in JSON, for log records, at Langfuse's paths, and for web pages of other origins."""

from __future__ import annotations

import base64
import gzip
import json
import pathlib
import time
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from helpers.builders.json_otlp import json_of
from helpers.builders.points import gauge, metrics_request
from helpers.dashboards.tables import rejected, streams
from helpers.platform.examples import examples
from helpers.servers.otlp import METRICS, PROTOBUF, TRACES, Endpoint, StubCommitter, endpoint_over, refused, spans_body
from legato_ingest.auth import tokens
from legato_ingest.auth.tokens import WRITE
from legato_ingest.errors import Overloaded
from legato_ingest.storage import Store
from legato_ingest.write.committer import Receipt

JSON = "application/json"
LOGS = "/v1/logs"
PAGE = "https://shop.example"


def answered(reply: httpx.Response) -> Any:
    """Check that a reply is a 200 in JSON, and return its content."""
    assert (reply.status_code, reply.headers["content-type"]) == (200, JSON), reply.content
    return reply.json()


def test_spans_in_json_are_stored(store: Store, endpoint: Endpoint) -> None:
    """With a charset and compression; the same spans in protobuf are duplicates."""
    body = spans_body(3)
    assert answered(endpoint.post(gzip.compress(json_of(body)), "gzip", "application/json; charset=utf-8")) == {}
    assert endpoint.post(body.SerializeToString()).status_code == 200
    assert len(streams(store)) == 3
    assert store.select("SELECT count() FROM stream_revs") == [(3,)]


def test_a_partial_success_in_json_has_number_and_reasons(store: Store, endpoint: Endpoint) -> None:
    """Spans that the decoder of JSON and those that the converter rejects are counted together; int64 is a text in JSON."""
    document = json.loads(json_of(spans_body(3, bad=1)))
    document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["kind"] = {}
    partial = answered(endpoint.post(json.dumps(document).encode(), content_type=JSON))["partialSuccess"]
    assert partial["rejectedSpans"] == "2" and "json, timeline" in partial["errorMessage"]
    assert len(streams(store)) == 2 and {row["reason"] for row in rejected(store)} == {"json", "timeline"}


def test_points_in_json_are_stored(store: Store, endpoint: Endpoint) -> None:
    """As in protobuf."""
    body = metrics_request()
    gauge(body, "a", 1.5, time.time_ns())
    assert answered(endpoint.post(json_of(body), content_type=JSON, path=METRICS)) == {}
    assert store.select("SELECT metric, value FROM node_samples") == [("a", 1.5)]


def test_errors_have_the_encoding_of_the_request(endpoint: Endpoint) -> None:
    """400 and 413 name what was found; an overload has the header Retry-After."""
    reply = endpoint.post(b'{"resourceSpans":{}}', content_type=JSON)
    assert reply.headers["content-type"] == JSON
    assert refused(reply, 400, 3).message == "the body is not an OTLP request in JSON: resourceSpans: expected an array, found an object"
    assert endpoint.post(b" " * 200_001, content_type=JSON).json()["code"] == 8
    with endpoint_over(StubCommitter(Receipt(), raises=Overloaded("full"))) as full:
        refused(full.post(json_of(spans_body()), content_type=JSON), 429, 8)


def test_log_records_are_acknowledged_and_counted(store: Store, endpoint: Endpoint) -> None:
    """In both encodings; none is stored."""
    body = ExportLogsServiceRequest()
    records = body.resource_logs.add().scope_logs.add().log_records
    records.add(trace_id=b"t" * 16).body.string_value = "a secret"
    records.add(severity_number=9)
    reply = endpoint.post(body.SerializeToString(), path=LOGS)
    assert (reply.status_code, reply.headers["content-type"], reply.content) == (200, PROTOBUF, b"")
    assert answered(endpoint.post(json_of(body), content_type=JSON, path=LOGS)) == {}
    lines = endpoint.client.get("/metrics").text.splitlines()
    assert 'legato_log_records_total{outcome="received"} 4.0' in lines and 'legato_log_records_total{outcome="ignored"} 4.0' in lines
    refused(endpoint.post(b"\xff", path=LOGS), 400, 3)
    assert not streams(store) and not rejected(store)


def test_clients_of_langfuse_can_send(tmp_path: pathlib.Path, store: Store) -> None:
    """To their path, with a token as the password of any public key."""
    token = tokens.add(tmp_path / "tokens.toml", "langfuse", "shop", WRITE)
    with endpoint_over(StubCommitter(Receipt()), tokens_file=tmp_path / "tokens.toml") as endpoint:
        for password, status in ((token, 200), ("sk-lf-1", 401)):
            basic = {"authorization": f"Basic {base64.b64encode(f'pk-lf-1:{password}'.encode()).decode()}", "content-type": JSON}
            for path in (TRACES, METRICS, LOGS):
                reply = endpoint.client.post(f"/api/public/otel{path}", content=b"{}", headers=basic)
                assert reply.status_code == status, reply.content


def _preflight(endpoint: Endpoint, origin: str, path: str = TRACES) -> httpx.Response:
    asked = {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    return endpoint.client.options(path, headers=asked)


def test_pages_of_other_origins_may_send_where_the_settings_name_them(tmp_path: pathlib.Path) -> None:
    """The preflight is answered without a token, on the paths of OTLP only; replies that are errors can be read by the page, too."""
    path = tmp_path / "tokens.toml"
    with endpoint_over(StubCommitter(Receipt()), tokens_file=path if tokens.add(path, "t", "shop", WRITE) else None) as endpoint:
        assert _preflight(endpoint, PAGE).status_code == 405
    with endpoint_over(StubCommitter(Receipt()), tokens_file=path, cors_origins=f"{PAGE}, http://localhost:3000") as endpoint:
        for each in (TRACES, METRICS, LOGS):
            reply = _preflight(endpoint, PAGE, each)
            assert reply.status_code == 200 and reply.headers["access-control-allow-origin"] == PAGE
            assert "authorization" in reply.headers["access-control-allow-headers"]
        assert "access-control-allow-origin" not in _preflight(endpoint, "https://other.example").headers
        assert "access-control-allow-origin" not in _preflight(endpoint, PAGE, "/metrics").headers
        denied = endpoint.client.post(TRACES, content=b"{}", headers={"origin": "http://localhost:3000", "content-type": JSON})
        assert denied.status_code == 401 and denied.headers["access-control-allow-origin"] == "http://localhost:3000"
        assert "access-control-allow-origin" not in endpoint.client.get("/metrics", headers={"origin": PAGE}).headers


def test_a_token_of_an_origin_may_only_write_from_there(tmp_path: pathlib.Path) -> None:
    """With another Origin header, or none, it is refused with 403; CORS is not needed for that."""
    path = tmp_path / "tokens.toml"
    token = tokens.add(path, "page", "shop", WRITE, PAGE)
    with endpoint_over(StubCommitter(Receipt()), tokens_file=path) as endpoint:
        for origin, status in ((PAGE, 200), ("https://other.example", 403), ("null", 403), ("", 403)):
            head = {"authorization": f"Bearer {token}", "content-type": JSON, **({"origin": origin} if origin else {})}
            reply = endpoint.client.post(TRACES, content=b"{}", headers=head)
            assert reply.status_code == status and token not in reply.text
        assert endpoint.client.get("/metrics", headers={"authorization": f"Bearer {token}", "origin": PAGE}).status_code == 401


@pytest.mark.parametrize("path", [TRACES, METRICS, LOGS])
@given(content=st.binary(max_size=60) | st.text(st.sampled_from('{}[]:,"1e\\ud8'), max_size=40).map(str.encode))
@examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_body_in_json_has_a_defined_reply(lasting: Endpoint, path: str, content: bytes) -> None:
    """It is never a 5xx, and always JSON."""
    reply = lasting.post(content, content_type=JSON, path=path)
    assert reply.status_code in (200, 400) and isinstance(reply.json(), dict)
