"""Numbers and texts of the reports: units, unknown values, harmless texts.

A number is written with its unit and with no more digits than are known; an unknown value is a dash, never 0. It computes no statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from legato_ingest.visible import visible

__all__ = ["DASH", "bytes_of", "clean", "count", "duration", "limit", "n_of", "ratio", "share", "some", "sparkline"]

DASH = "–"
_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARK_EDGES_US = (25_000, 50_000, 100_000, 250_000, 400_000, 1_000_000, 2_000_000)


def clean(value: Any) -> Any:
    """Return the same data with its texts as ``visible`` writes them, so that received names cannot steer a terminal."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    # Lists of numbers (timelines) are long and hold no text.
    return [clean(item) for item in value] if isinstance(value, list) and value and isinstance(value[0], str | dict | list) else value


def duration(microseconds: int | float | None) -> str:
    """Return ``410 µs``, ``23 ms``, ``1.34 s`` or ``2 min 5 s``."""
    if microseconds is None:
        return DASH
    if microseconds < 1_000:
        return f"{microseconds:.0f} µs" if microseconds else "0 ms"
    if microseconds < 9_950:
        return f"{microseconds / 1e3:.1f} ms"
    if microseconds < 999_500:
        return f"{microseconds / 1e3:.0f} ms"
    if microseconds < 99_950_000:
        return f"{microseconds / 1e6:.2f} s"
    minutes, seconds = divmod(round(microseconds / 1e6), 60)
    return f"{minutes:,} min {seconds} s"


def limit(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return the limit of a good stream; where streams have several objectives, a text instead of it. Column ``name`` has lists in µs."""
    limits_us = {int(us) for row in rows for us in row[name]}
    return duration(limits_us.pop()) if len(limits_us) == 1 else "its limit"


def share(part: int, whole: int) -> str:
    """Return ``98.7 %``. Never 100 % for less than all, never 0 % for more than none."""
    if not whole:
        return DASH
    percent = 100 * part / whole
    if 0 < part < whole:
        percent = min(max(percent, 0.01), 99.99)
        return f"{percent:.2f} %" if percent > 99.9 or percent < 0.1 else f"{percent:.1f} %"
    return f"{percent:.0f} %"


def count(number: int | None) -> str:
    """Return ``12,345``."""
    return DASH if number is None else f"{number:,}"


def some(number: int, noun: str) -> str:
    """Return ``1 stall`` or ``12,345 stalls``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def n_of(number: int) -> str:
    """Return ``n=12,345``."""
    return f"n={number:,}"


def ratio(value: float | None) -> str:
    """Return ``3.4``."""
    return DASH if value is None else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def bytes_of(number: int | None) -> str:
    """Return ``512 B`` or ``4.4 kB``."""
    if number is None:
        return DASH
    return f"{number} B" if number < 1_000 else f"{number / 1e3:.1f} kB" if number < 1_000_000 else f"{number / 1e6:.1f} MB"


def sparkline(gaps_us: Sequence[int]) -> str:
    """Return one block per gap on a logarithmic scale: the lowest below 25 ms, the highest from 2 s."""
    return "".join(_BLOCKS[sum(gap >= edge for edge in _SPARK_EDGES_US)] for gap in gaps_us)
