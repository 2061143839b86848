"""`legato.configure()`: exports streams to Legato over OTLP/HTTP. Needs the extra ``[otlp]``.

Streams go through a tracer provider that only Legato uses (`_provider`), and the number of streams in flight is a gauge (`_in_flight`).
The application's own provider is not touched: it may be set before or after this call, and exports none of Legato's spans. Without
`configure()`, Legato's spans go to the exporters of the application's provider.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any

from legato._errors import ConfigurationError, guard, warn_once, wrong_setting
from legato._route import is_opentelemetry_disabled, own, use, use_later, warn_unsampled
from legato._state import recording_settings, settings, setup

__all__ = ["configure", "configure_if_given", "configure_later"]

_Given = tuple[str | None, str | None, str | None]
_configured: list[tuple[Any, _Given]] = []


def configure(endpoint: str | None = None, *, service_name: str | None = None, service_version: str | None = None) -> Any:
    """Export to ``endpoint`` (base URL; default LEGATO_ENDPOINT) and return Legato's own tracer provider. Further calls have no effect.

    ``service_name`` and ``service_version`` default to those of the application's tracer provider, if it is set already, else to
    OpenTelemetry's variables (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES). Raises ``ConfigurationError`` if the extra is not installed.
    """
    given = (endpoint, service_name, service_version)
    provider, first = _use_first(None if _configured else _made(*given), given)
    if given not in (first, (None, None, None)):
        warn_once("configure", "configure() was called again with other arguments, which are ignored: the first call counts.")
    if is_opentelemetry_disabled():
        warn_unsampled()
    _warn_of_eventlet()
    return provider


def _made(endpoint: str | None, service_name: str | None, service_version: str | None) -> Any:
    """Return a new provider that is not used yet. This imports: OpenTelemetry's exporter imports `requests` whenever one is made."""
    try:
        from legato._provider import Provider, resource_of
    except ImportError as error:
        needed = "legato.configure() needs the OTLP exporter; in a checkout of Legato: pip install './sdk[otlp]'"
        raise ConfigurationError(needed) from error
    base = (endpoint or settings().endpoint).rstrip("/")
    headers = {"Authorization": f"Bearer {settings().token}"} if settings().token else None
    interval_s = max(1, settings().export_interval_ms) / 1000
    return Provider(base, headers, resource_of(service_name, service_version), interval_s)


@setup
def _use_first(made: Any, given: _Given) -> tuple[Any, _Given]:
    """Use this provider, unless one is in use. Return the one in use and its arguments."""
    if not _configured:
        use(made)
        _configured.append((made.provider, given))
    return _configured[0]


def configure_if_given(place: str) -> None:
    """Call ``configure()`` if LEGATO_ENDPOINT is set, as the middlewares do. Nothing is raised: the server would not start."""
    chosen = recording_settings()
    if not chosen.endpoint_given or chosen.disabled:
        return
    with guard(place):
        try:
            configure()
        except ConfigurationError as error:
            wrong_setting(error, "Streams are not exported.")


def configure_later() -> None:
    """Call ``configure()`` with the first stream, unless the application calls it before.

    The exporter is imported now, because the first stream must not wait for it.
    """
    if own() is None:
        # OpenTelemetry's exporter may be what imports `requests` at this moment. Then it is imported with the first stream.
        with contextlib.suppress(ImportError):
            importlib.import_module("legato._provider")
        use_later(configure)


def _warn_of_eventlet() -> None:
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and patcher.is_monkey_patched("thread"):
        warn_once(
            "eventlet",
            "eventlet is not supported: its authors advise against it, and streams may be lost. Use gevent, threads or asyncio instead.",
        )
