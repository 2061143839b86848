"""Where streams go: to the provider of `legato.configure()`, else to the application's provider, else nowhere.

Legato's own provider is never OpenTelemetry's global one, so the application can set its own at any time, and neither exports the other's
spans. The module holds the decision; `_provider` makes the provider, and `_spans` the spans.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from opentelemetry import trace

from legato._errors import warn_once
from legato._exits import after_fork
from legato._state import recording_settings

__all__ = ["Own", "Route", "current_route", "fate_of_unrecorded", "own", "own_for_stream", "use", "use_later", "warn_unsampled"]


class Route(Enum):
    """Where a stream's span goes."""

    OWN = 1
    APPLICATION = 2
    NOWHERE = 3
    DISABLED = 4


class Own(Protocol):
    """The part of Legato's own provider that others need."""

    @property
    def provider(self) -> trace.TracerProvider:
        """The provider of the spans."""

    def flush(self, timeout_s: float) -> bool:
        """Export everything that has ended. Return False on time-out and if an export has failed since the previous call."""

    def close(self, timeout_s: float) -> None:
        """Export everything before the process ends."""


_own: Own | None = None
_later: Callable[[], object] | None = None
# Re-entrant, because the handler of a signal may begin a stream while the thread that it interrupts makes the provider.
_making = threading.RLock()


def use(own_provider: Own) -> None:
    """Send all streams from now on through this provider."""
    global _own, _later
    _own, _later = own_provider, None


def use_later(configure: Callable[[], object]) -> None:
    """Call ``configure`` with the first stream, unless ``use`` was called before."""
    global _later
    if _own is None:
        _later = configure


def own_for_stream() -> Own | None:
    """Return Legato's own provider for a stream that begins now; it is made now if it was to be made later."""
    if _later is not None:
        with _making:
            _configure_now()
    return _own


def _configure_now() -> None:
    global _later
    configure = _later
    try:
        if configure is not None:
            configure()
    except Exception as error:
        warn_once("later", "streams are not exported: %s", error)
    finally:
        _later = None


def own() -> Own | None:
    """Return Legato's own provider; ``None`` before ``configure()``."""
    return _own


def current_route() -> Route:
    """Return where a stream that begins now goes."""
    if recording_settings().disabled:
        return Route.DISABLED
    if _own is not None:
        return Route.OWN
    is_none = isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)
    return Route.NOWHERE if is_none else Route.APPLICATION


def is_opentelemetry_disabled() -> bool:
    """Whether OTEL_SDK_DISABLED switches all of OpenTelemetry off."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def warn_unsampled() -> None:
    """Log once why streams are not recorded."""
    if is_opentelemetry_disabled():
        warn_once("unsampled", "OTEL_SDK_DISABLED=true: Legato records no streams. They are counted in legato.stats()['unsampled'].")
    else:
        warn_once(
            "unsampled",
            "the application's tracer provider does not sample every stream, and the rest is not recorded: legato.configure() sends all "
            "streams through a separate provider. Further ones are counted in legato.stats()['unsampled'], not logged.",
        )


def warn_lost() -> None:
    """Log once that streams go nowhere."""
    warn_once(
        "lost",
        "streams are recorded and sent nowhere: call legato.configure(), or set a tracer provider of OpenTelemetry, before the first "
        "stream. Further ones are counted in legato.stats()['lost'], not logged.",
    )


def fate_of_unrecorded(route: Route) -> str:
    """Return the fate of a stream without a recorded span, and log once what to do about it."""
    if route is Route.NOWHERE and not is_opentelemetry_disabled():
        warn_lost()
        return "lost"
    if route is not Route.DISABLED:
        warn_unsampled()
    return "unsampled"


def _forked() -> None:
    """A thread of the parent may have held the lock, and does not run in a child."""
    global _making
    _making = threading.RLock()


after_fork(_forked)
