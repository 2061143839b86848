"""OpenTelemetry's own SDKs for Python, Go and Node against `legato serve`, over each protocol of OTLP, with TLS and a token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from helpers.platform.otlp_clients import run
from helpers.servers.certificates import issued
from helpers.servers.ports import free_port
from helpers.servers.serving import serve_process
from legato_ingest.auth import tokens
from legato_ingest.auth.tokens import READ, WRITE

# Times of chunks, ms after the start: the role, then content each 20 ms, with one pause.
CHUNKS_MS = (100, 300, 320, 340, 1040, 1060)


@dataclass(frozen=True)
class Running:
    """A running `legato serve`: its two receivers, and how to read."""

    environ: dict[str, str]
    http: str
    grpc: str
    read: str
    reader: httpx.Client

    def rows(self, sql: str) -> list[list[object]]:
        """Return the rows of a query."""
        answer = self.reader.get(self.read, params={"query": sql, "default_format": "JSONCompact"})
        assert answer.status_code == 200, answer.text
        rows: list[list[object]] = answer.json()["data"]
        return rows


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One process for all clients."""
    folder = tmp_path_factory.mktemp("sdks")
    path, (certificate, key, authority) = folder / "tokens.toml", issued(folder)
    write, read, port, root = tokens.add(path, "w", "shop", WRITE), tokens.add(path, "r", "shop", READ), free_port(), folder / "root.pem"
    authority.cert_pem.write_to_path(str(root))
    tls = {"LEGATO_TLS_CERT_FILE": str(certificate), "LEGATO_TLS_KEY_FILE": str(key), "LEGATO_TOKENS_FILE": str(path)}
    environ = {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(root), "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{write}"}
    with (
        serve_process(folder / "store", LEGATO_OTLP_GRPC_PORT=str(port), **tls) as served,
        httpx.Client(verify=False, headers={"authorization": f"Bearer {read}"}) as reader,
    ):
        http, asked = (url.replace("http:", "https:") for url in (served.otlp, served.read))
        yield Running(environ, http, f"https://127.0.0.1:{port}", asked, reader)


@pytest.mark.parametrize(
    ("language", "protocol", "compression"),
    [
        ("python", "http/protobuf", "gzip"),
        ("python", "grpc", ""),
        ("go", "http/protobuf", "gzip"),
        ("go", "grpc", ""),
        ("node", "http/protobuf", ""),
        ("node", "http/json", "gzip"),
        ("node", "grpc", "gzip"),
    ],
)
def test_streams_and_histograms_arrive(running: Running, language: str, protocol: str, compression: str) -> None:
    """The row has each gap to the µs, the histogram each bucket; the SDK reports no error and no partial success."""
    service = f"{language} {protocol}"
    endpoint = running.grpc if protocol == "grpc" else running.http
    environ = {
        **running.environ,
        "OTEL_SERVICE_NAME": service,
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        **({"OTEL_EXPORTER_OTLP_COMPRESSION": compression} if compression else {}),
    }
    run(language, environ, *map(str, CHUNKS_MS))
    streams = f"SELECT outcome, chunks, ttft_us, gap_max_us, dt_us, output_tokens FROM streams WHERE service_name = '{service}'"
    dt_us = [1000 * (after - before) for before, after in zip((0, *CHUNKS_MS), CHUNKS_MS, strict=False)]
    assert running.rows(streams) == [["complete", 6, 100_000, 700_000, dt_us, 6]]
    samples = "SELECT kind, temporality, toUInt64(count), sum, bounds, bucket_counts FROM node_samples"
    named = f"{samples} WHERE metric = 'app.latency' AND attributes['service.name'] = '{service}'"
    assert running.rows(named) == [["histogram", "cumulative", 4, 6.05, [0.1, 1], [1, 2, 1]]]
