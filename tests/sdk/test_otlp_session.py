"""The headers of Legato's exports: credentials of another backend, or of a .netrc, do not reach Legato's endpoint; no proxy to loopback.

And no spans of these requests.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from opentelemetry import context
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY
from opentelemetry.sdk.resources import Resource

import legato
from helpers.servers.receiver import receiver
from legato._in_flight import InFlight
from legato._otlp_session import ExportSession
from legato._provider import Provider

VENDOR, OWN = "Bearer of-the-vendor", "Bearer of-legato"


@pytest.fixture(autouse=True)
def closed_sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the sessions of a test: exporters keep them until the process ends. No thread goes on to report what is in flight."""
    monkeypatch.setattr(InFlight, "start", lambda _: None)
    made, make = list[ExportSession](), ExportSession.__init__

    def remember(self: ExportSession, *arguments: Any) -> None:
        make(self, *arguments)
        made.append(self)

    monkeypatch.setattr(ExportSession, "__init__", remember)
    yield
    for session in made:
        session.close()


@pytest.mark.parametrize(
    ("environ", "headers", "sent"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://api.vendor.example"}, None, ("", "")),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "vendor.example:4317"}, None, ("", "")),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://api.vendor.example"}, {"Authorization": OWN}, (OWN, OWN)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://api.vendor.example/v1/traces"}, None, ("", "")),
        ({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "https://api.vendor.example/v1/logs"}, None, ("", "")),
        (
            {
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://api.vendor.example/v1/traces",
                "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://localhost.:4318/v1/metrics",
            },
            None,
            ("", VENDOR),
        ),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "https://api.vendor.example",
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://0.0.0.0:4318/v1/traces",
            },
            None,
            (VENDOR, ""),
        ),
        (
            {
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://api.vendor.example/v1/traces",
                "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "Authorization=Bearer%20of-metrics",
            },
            None,
            ("", "Bearer of-metrics"),
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317"}, None, (VENDOR, VENDOR)),
        ({}, None, (VENDOR, VENDOR)),
        ({}, {"Authorization": OWN}, (OWN, OWN)),
    ],
)
def test_headers_of_another_host_are_left_out(
    environ: dict[str, str], headers: dict[str, str] | None, sent: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``sent``: the Authorization of traces and of metrics. The variable of a signal comes before the general one.

    Without an endpoint of a signal, the general headers belong to the endpoints of the other signals.
    """
    for name, value in {**environ, "OTEL_EXPORTER_OTLP_HEADERS": f"Authorization={VENDOR.replace(' ', '%20')}"}.items():
        monkeypatch.setenv(name, value)
    assert exported(headers) == sent


@pytest.mark.parametrize(("headers", "authorization"), [({"Authorization": OWN}, OWN), (None, "")])
def test_neither_a_netrc_nor_a_proxy_is_used(
    headers: dict[str, str] | None, authorization: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another's password does not replace the token, and exports to this machine do not leave it."""
    (tmp_path / "netrc").write_text("default login name password secret\n", encoding="ascii")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert exported(headers) == (authorization, authorization)


@pytest.mark.parametrize(("headers", "authorization"), [({"Authorization": OWN}, OWN), (None, "Basic bWU6YSBi")])
def test_a_user_in_the_url_is_sent_without_a_token(headers: dict[str, str] | None, authorization: str) -> None:
    """As `requests` does without a session's authorization. Its password is percent-encoded."""
    assert exported(headers, "me:a%20b@") == (authorization, authorization)


@pytest.mark.parametrize("endpoint", ["https://api.vendor.example", ""])
def test_an_export_has_its_own_content_and_makes_no_spans(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers for another backend do not change what is sent, and an instrumented `requests` records no request."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "content-type=application/json,content-encoding=zstd,host=vendor,x-key=k")
    sent, send = list[tuple[object, ...]](), requests.Session.send

    def instrumented(self: requests.Session, request: requests.PreparedRequest, **more: Any) -> requests.Response:
        given = request.headers
        is_suppressed = context.get_value(_SUPPRESS_INSTRUMENTATION_KEY)
        sent.append((given["Content-Type"], given["Content-Encoding"], given.get("host"), given.get("x-key"), is_suppressed))
        return send(self, request, **more)

    monkeypatch.setattr(requests.Session, "send", instrumented)
    exported(None)
    others = (None, None) if endpoint else ("vendor", "k")
    assert sent == [("application/x-protobuf", "gzip", *others, True)] * 2
    assert not context.get_value(_SUPPRESS_INSTRUMENTATION_KEY)


def exported(headers: dict[str, str] | None, user: str = "") -> tuple[str, str]:
    """Export a span and a gauge with these headers. Return the Authorization of both requests. ``user``: that of the URL, with an @."""
    with receiver() as endpoint:
        url = endpoint.url.replace("//", f"//{user}")
        provider = Provider(url, headers, Resource({"service.name": "s"}), 1.0)
        provider.provider.get_tracer("legato").start_span("chat m").end()
        assert provider._sender.flush(30)
        gauge = InFlight(f"{url}/v1/metrics", headers, {"service.name": "s"})
        report = gauge._reporter()
        with legato.stream(model="m"):
            report()
        found = {each.path: each.authorization for each in endpoint.accepted}
    return found["/v1/traces"], found["/v1/metrics"]
