"""How figures are written for people.

One idea: a number never stands without its n, and what nobody knows is a dash, never 0.
"""

from __future__ import annotations

__all__ = ["DASH", "count", "duration", "p99", "ratio", "share"]

DASH = "–"
_SMALL = 100


def duration(micros: float | None) -> str:
    """µs as a time with its unit, three digits."""
    if micros is None:
        return DASH
    if micros < 1000:
        return f"{micros:.0f} µs"
    if micros < 1_000_000:
        return f"{micros / 1000:.3g} ms" if micros < 100_000 else f"{micros / 1000:.0f} ms"
    return f"{micros / 1_000_000:.3g} s"


def share(part: int, whole: int) -> str:
    """A share in per cent with its n; a dash without any."""
    return f"{100 * part / whole:.1f} % (n={whole})" if whole else DASH


def ratio(value: float | None) -> str:
    """A plain ratio, three digits."""
    return DASH if value is None else f"{value:.3g}"


def count(value: int | None) -> str:
    """A whole number."""
    return DASH if value is None else f"{value:,}"


def p99(micros: float | None, n: int) -> str:
    """A p99 with its n; of so few values it is their maximum, and says so."""
    if not n:
        return DASH
    return f"{duration(micros)} ({'max, ' if n <= _SMALL else ''}n={n})"
