"""What `legato run` does in a process of its program: it records the streams of all libraries, and exports them.

The exporter is imported with the first client library, because imports are expected to take time there, and the provider is made with the
first stream: so an application's own ``legato.configure()`` and its set-up of OpenTelemetry come before. Nothing here raises.
"""

from __future__ import annotations

from legato._errors import warn_once
from legato._instrument import instrument, instrument_package
from legato._otlp import configure_later

__all__ = ["start"]


def start(name: str) -> None:
    """Begin to record. ``name``: the package that was imported just now. Further calls instrument further packages."""
    try:
        configure_later()
        instrument()
        instrument_package(name)
    except Exception as error:
        warn_once("run", "`legato run` records nothing: %s: %s", type(error).__name__, error)
