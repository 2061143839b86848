"""Measurements: numbers with a name, a unit and attributes, as collectors yield them and the exporter encodes them.

The values are complete by themselves, so collectors do not depend on OTLP and the exporter does not depend on the sources. The module uses
the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["UNKNOWN_START", "Attributes", "Distribution", "Measured", "Measurement", "Timed", "boot_attributes"]

Attributes = tuple[tuple[str, str], ...]

UNKNOWN_START = 0
"""The start of a counter that the reader of a single value does not know; `counter_starts` finds it."""


def boot_attributes(boot_id: str) -> Attributes:
    """Return the attribute that names the boot of the host with the clock of the measurements; nothing for an unknown boot."""
    return (("legato.boot.id", boot_id),) if boot_id else ()


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number. ``start_ns``: for a counter, when it was 0 or first seen (ns since the epoch); ``None`` for a gauge."""

    metric: str
    unit: str
    value: float
    attributes: Attributes = ()
    start_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram of the observations since ``start_ns``.

    ``counts`` has one entry per bound, each without those of the bounds below, and one more for observations above the last bound.
    ``bounds`` ascend and exclude infinity. ``total`` is the sum of the observations, ``None`` where the source has none.
    """

    metric: str
    unit: str
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float | None
    start_ns: int
    attributes: Attributes = ()


Measured = Measurement | Distribution
Timed = tuple[int, Measured]
"""A measurement and its time, ns since the epoch."""
