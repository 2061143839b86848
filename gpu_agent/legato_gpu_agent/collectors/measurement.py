"""What a collector found: numbers with a name, a unit and attributes.

One idea: a reading is a plain value that says all of itself, so a collector knows nothing of OTLP and what sends it knows nothing of where
it came from. The standard library alone; it keeps and sends nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Attributes", "Distribution", "Found", "Reading", "booted"]

Attributes = tuple[tuple[str, str], ...]


def booted(boot_id: str) -> Attributes:
    """By the clock of which boot of a host something is told; nothing where nobody knows."""
    return (("legato.boot.id", boot_id),) if boot_id else ()


@dataclass(frozen=True, slots=True)
class Reading:
    """One number. ``since_ns``: for a counter, when it was 0 or first seen (ns since the epoch); 0 for what is no counter."""

    metric: str
    unit: str
    value: float
    attributes: Attributes = ()
    since_ns: int = 0


@dataclass(frozen=True, slots=True)
class Distribution:
    """What was observed since ``since_ns``: how many up to each bound, one entry more for those above; and their sum.

    ``bounds`` ascend and have no infinity. ``total`` is ``None`` where the source has no sum.
    """

    metric: str
    unit: str
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float | None
    since_ns: int
    attributes: Attributes = ()


Found = Reading | Distribution
