"""`legato serve` over all protocols of OTLP: the exporters of OpenTelemetry, with tokens and TLS, and ports that are taken."""

from __future__ import annotations

import asyncio
import pathlib
import signal
import socket
from typing import Any, cast

import grpc
import httpx
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter

from helpers.builders.json_otlp import json_of
from helpers.builders.spans import native_span, request, steady_timeline
from helpers.servers.certificates import issued
from helpers.servers.ports import free_port
from helpers.servers.serving import legato, serve_process, serving
from legato_ingest.auth import tokens
from legato_ingest.auth.tokens import READ, WRITE
from legato_ingest.cli.doctor.findings import Setup
from legato_ingest.cli.doctor.grpc_endpoint import otlp_grpc
from legato_ingest.errors import LegatoError
from legato_ingest.otlp.signals import SPANS
from legato_ingest.serve import _grpc_server
from legato_ingest.settings import load
from legato_ingest.write.grpc_server import GrpcServer

ATTRIBUTES: dict[str, str | bytes | int] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "model-a",
    "legato.stream.timeline": steady_timeline(20),
    "legato.stream.vantage": "client",
    "legato.stream.outcome": "complete",
    "legato.stream.chunks": 20,
}


def send(exporter: SpanExporter, service: str) -> None:
    """Send the span of one stream through OpenTelemetry's SDK."""
    provider = TracerProvider(resource=Resource({"service.name": service}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("legato", attributes={"legato.emitter": "test/1"})
    tracer.start_span("chat", attributes=ATTRIBUTES).end()
    provider.shutdown()


def test_streams_arrive_over_every_protocol(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC, HTTP with protobuf and HTTP with JSON, on TLS and with a token; the process ends at once when it is stopped."""
    path, (certificate, key, authority) = tmp_path / "tokens.toml", issued(tmp_path)
    write, read, port = tokens.add(path, "w", "shop", WRITE), tokens.add(path, "r", "shop", READ), free_port()
    root = tmp_path / "root.pem"
    # These would take precedence over the exporter's certificate.
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    authority.cert_pem.write_to_path(str(root))
    tls = {"LEGATO_TLS_CERT_FILE": str(certificate), "LEGATO_TLS_KEY_FILE": str(key), "LEGATO_TOKENS_FILE": str(path)}
    with serve_process(tmp_path / "store", LEGATO_OTLP_GRPC_PORT=str(port), **tls) as served:
        bearer = {"authorization": f"Bearer {write}"}
        credentials = grpc.ssl_channel_credentials(root.read_bytes())
        send(GrpcExporter(f"https://127.0.0.1:{port}", credentials=credentials, headers=bearer), "grpc")
        url = served.otlp.replace("http:", "https:")
        send(HttpExporter(f"{url}/v1/traces", certificate_file=str(root), headers=bearer), "protobuf")
        monkeypatch.setenv("SSL_CERT_FILE", str(root))
        assert otlp_grpc(Setup(load(otlp_grpc_port=port), url, "", token=write)).state == "well"
        assert otlp_grpc(Setup(load(otlp_grpc_port=port), served.otlp, "", token=write)).state == "fault", "it does not speak TLS"
        body = request({"service.name": "json"})
        native_span(body)
        with httpx.Client(verify=False, headers={**bearer, "content-type": "application/json"}) as client:
            assert client.post(f"{url}/v1/traces", content=json_of(body)).text == "{}"
            question = {"query": "SELECT service_name, chunks FROM streams ORDER BY service_name", "default_format": "TSV"}
            answer = client.get(served.read.replace("http:", "https:"), params=question, headers={"authorization": f"Bearer {read}"})
        assert answer.text == "grpc\t20\njson\t20\nprotobuf\t20\n"
        served.process.send_signal(signal.SIGTERM)
        output, _ = served.process.communicate(timeout=30)
        assert served.process.returncode == 0 and f"  gRPC  https://127.0.0.1:{port}  (OTLP)" in output


def test_a_taken_port_prevents_the_start_only_if_it_was_chosen(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a choice, the process serves everything but gRPC and says so, at its start and to gRPC clients at the HTTP port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        chosen = {"LEGATO_STORE": f"chdb://{tmp_path / 'store'}", "LEGATO_OTLP_GRPC_PORT": str(taken.getsockname()[1])}
        refused = legato("serve", environ={**chosen, "LEGATO_OTLP_PORT": str(free_port()), "LEGATO_READ_PORT": str(free_port())})
        assert refused.returncode == 1 and "set LEGATO_OTLP_GRPC_PORT" in refused.stderr
    monkeypatch.delenv("LEGATO_OTLP_GRPC_PORT")
    with socket.socket() as taken:
        try:
            taken.bind(("127.0.0.1", 4317))
            taken.listen()
        except OSError:
            pass  # Another process has it.
        ports = {"LEGATO_OTLP_PORT": str(free_port()), "LEGATO_READ_PORT": str(free_port())}
        with serving({"LEGATO_STORE": f"chdb://{tmp_path / 'other'}", **ports}) as process:
            with (
                grpc.insecure_channel(f"127.0.0.1:{ports['LEGATO_OTLP_PORT']}") as channel,
                pytest.raises(grpc.RpcError, match="gRPC is off"),
            ):
                channel.unary_unary(f"/{SPANS.service}/Export", request_serializer=bytes)(b"", timeout=30)
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=30)
        assert "a client speaks HTTP/2, probably gRPC, and is refused" in output
        assert "no OTLP over gRPC: cannot listen on 127.0.0.1:4317" in output and "gRPC  http" not in output


def test_a_default_port_that_is_taken_while_the_store_opens_prevents_no_start(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another `legato serve` that starts at the same moment, for example. A port that was chosen does."""
    monkeypatch.delenv("LEGATO_OTLP_GRPC_PORT", raising=False)

    async def opened(port: int, **chosen: int) -> GrpcServer | None:
        return _grpc_server(load(**chosen), cast(Any, None), None, ("127.0.0.1", port))

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert asyncio.run(opened(port)) is None and "no OTLP over gRPC: cannot listen on" in caplog.text
        with pytest.raises(LegatoError, match="set LEGATO_OTLP_GRPC_PORT"):
            asyncio.run(opened(port, otlp_grpc_port=port))
