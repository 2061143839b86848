"""The entry point of OpenTelemetry's automatic instrumentation: `opentelemetry-instrument` finds it wherever the SDK is installed.

It needs no class of OpenTelemetry's packages: the loader calls ``instrument`` and nothing else. Streams go through the application's tracer
provider, which the loader has set before, as without ``legato.configure()``; to Legato's own endpoint if LEGATO_ENDPOINT is set, and with
`legato run`.
"""

from __future__ import annotations

from typing import Any

from legato._errors import warn_once
from legato._instrument import instrument, uninstrument
from legato._otlp import configure_later
from legato._state import settings

__all__ = ["Instrumentor"]


class Instrumentor:
    """What the loader instantiates. Its methods raise nothing: an exception would end OpenTelemetry's own set-up."""

    def instrument(self, **_: Any) -> None:
        """Record the streams of all libraries from now on."""
        try:
            # OpenTelemetry's loader runs instead of that of `legato run`, if its command is the program.
            if settings().endpoint_given or settings().program:
                configure_later()
            instrument()
        except Exception as error:
            warn_once("entry_point", "streams are not recorded: %s", error)

    def uninstrument(self, **_: Any) -> None:
        """Undo ``instrument``."""
        uninstrument()
