"""The HTTP session of Legato's OTLP exporters. Needs the extra ``[otlp]``.

OpenTelemetry's exporters send the headers of OTEL_EXPORTER_OTLP_HEADERS to every endpoint. They are often the API key of another backend:
if OTEL_EXPORTER_OTLP_ENDPOINT names another host than Legato's endpoint, they are left out here. Two habits of `requests` are undone: it
replaces a token by what a .netrc has for the host, and sends requests to this machine to the proxy of HTTP_PROXY.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.util.re import parse_env_headers
from requests import ConnectionError, PreparedRequest, Response, Session

from legato._pace import check
from legato._replies import replies

__all__ = ["ExportSession"]

_LOOPBACK = "localhost"


class ExportSession(Session):
    """Sends exports of ``signal`` (``traces`` or ``metrics``) to ``url``. ``headers``: Legato's own.

    It notes if no server was found: the exporter tries again, and reports it only when it gives up.
    """

    def __init__(self, signal: str, url: str, headers: Mapping[str, str]) -> None:
        super().__init__()
        self._own, self._foreign = dict(headers), _foreign_headers(signal.upper(), url, os.environ)
        # With it, `requests` looks for no .netrc.
        self.auth = self._authorize

    def _authorize(self, request: PreparedRequest) -> PreparedRequest:
        for name in self._foreign:
            request.headers.pop(name, None)
        request.headers.update(self._own)
        return request

    def send(self, request: PreparedRequest, **more: Any) -> Response:
        """Send a request, unless this is the copy of a thread that was sending it at a fork: its parent goes on."""
        check()
        if _host(request.url or "") == _LOOPBACK:
            more["proxies"] = {}
        # Older exporters follow a redirect to a login, and take its page for a success.
        more["allow_redirects"] = False
        try:
            return super().send(request, **more)
        except ConnectionError:
            replies.is_unreachable = True
            raise


def _foreign_headers(signal: str, url: str, environ: Mapping[str, str]) -> frozenset[str]:
    """Return the names of OpenTelemetry's headers if they belong to another host than that of ``url``.

    Source: "OpenTelemetry Protocol Exporter" of OpenTelemetry's specification: the variable of a signal comes before the general one.
    """

    def variable(name: str) -> str:
        return environ.get(f"OTEL_EXPORTER_OTLP_{signal}_{name}") or environ.get(f"OTEL_EXPORTER_OTLP_{name}") or ""

    endpoint = variable("ENDPOINT")
    if not endpoint or _host(endpoint) == _host(url):
        return frozenset()
    return frozenset(parse_env_headers(variable("HEADERS"), liberal=True))


def _host(url: str) -> str:
    """Return the host of a URL, or of ``host:port`` as the exporters of gRPC accept. The names of loopback are one host."""
    try:
        host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
    except ValueError:
        return ""
    try:
        return _LOOPBACK if ip_address(host).is_loopback else host
    except ValueError:
        return host
