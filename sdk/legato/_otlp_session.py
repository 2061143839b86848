"""The HTTP session of Legato's OTLP exporters. Needs the extra ``[otlp]``.

OpenTelemetry's exporters send the headers of OTEL_EXPORTER_OTLP_HEADERS to every endpoint. They are often the API key of another backend:
if OpenTelemetry's endpoints are on another host than Legato's, they are left out here. Two habits of `requests` are undone: it replaces a
token by what a .netrc has for the host, and sends requests to this machine to the proxy of HTTP_PROXY. An instrumented HTTP client makes no
spans of exports: they would be exported in turn.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import context
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY
from opentelemetry.util.re import parse_env_headers
from requests import ConnectionError, PreparedRequest, Response, Session
from requests.auth import HTTPBasicAuth
from requests.utils import get_auth_from_url

from legato._pace import check
from legato._replies import replies

__all__ = ["ExportSession"]

_LOOPBACK = "localhost"
_OTLP = "OTEL_EXPORTER_OTLP"
_SIGNALS = ("TRACES", "METRICS", "LOGS")
# Of every export. OpenTelemetry's headers, which may be those of another backend, come before those of its exporters.
_CONTENT = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}


class ExportSession(Session):
    """Sends exports of ``signal`` (``traces`` or ``metrics``), compressed with gzip, to ``url``. ``headers``: Legato's own.

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
        request.headers.update(_CONTENT)
        user, password = get_auth_from_url(request.url or "")
        if user or password:
            HTTPBasicAuth(user, password)(request)
        # A token replaces the user of the URL.
        request.headers.update(self._own)
        return request

    def send(self, request: PreparedRequest, **more: Any) -> Response:
        """Send a request, unless this is the copy of a thread that was sending it at a fork: its parent goes on."""
        check()
        if _host(request.url or "") == _LOOPBACK:
            more["proxies"] = {}
        # Older exporters follow a redirect to a login, and take its page for a success.
        more["allow_redirects"] = False
        token = context.attach(context.set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
        try:
            return super().send(request, **more)
        except ConnectionError:
            replies.is_unreachable = True
            raise
        finally:
            context.detach(token)


def _foreign_headers(signal: str, url: str, environ: Mapping[str, str]) -> frozenset[str]:
    """Return the names of OpenTelemetry's headers if they belong to another host than that of ``url``.

    Source: "OpenTelemetry Protocol Exporter" of OpenTelemetry's specification: the variable of a signal comes before the general one.
    Headers of all signals, where this signal has no endpoint, belong to the endpoints of the others.
    """
    headers = environ.get(f"{_OTLP}_{signal}_HEADERS")
    endpoint = environ.get(f"{_OTLP}_{signal}_ENDPOINT") or environ.get(f"{_OTLP}_ENDPOINT")
    others = [] if headers else [environ.get(f"{_OTLP}_{each}_ENDPOINT") for each in _SIGNALS]
    hosts = {_host(each) for each in ([endpoint] if endpoint else others) if each}
    if not hosts or _host(url) in hosts:
        return frozenset()
    return frozenset(parse_env_headers(headers or environ.get(f"{_OTLP}_HEADERS", ""), liberal=True))


def _host(url: str) -> str:
    """Return the host of a URL, or of ``host:port`` as the exporters of gRPC accept. The names of this machine are one host."""
    try:
        host = (urlsplit(url if "//" in url else f"//{url}").hostname or "").removesuffix(".")
    except ValueError:
        return ""
    try:
        address = ip_address(host)
        return _LOOPBACK if address.is_loopback or address.is_unspecified else host
    except ValueError:
        return host
