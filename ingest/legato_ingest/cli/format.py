"""Numbers as people read them in a terminal: units, and what nobody knows.

One idea: a figure is printed with its unit and never more digits than it means; unknown is a dash, never a 0. Texts come from strangers and
are made harmless here. It computes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

__all__ = ["DASH", "bytes_of", "clean", "count", "duration", "n_of", "ratio", "share", "sparkline"]

DASH = "–"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_BLOCKS = "▁▂▃▄▅▆▇█"


def clean(value: Any) -> Any:
    """The same data with every control character in its texts made visible: whoever sends spans does not steer the reader's terminal."""
    if isinstance(value, str):
        return _CONTROL.sub("\ufffd", value)
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    # Lists of numbers (timelines) are long and hold no text.
    return [clean(item) for item in value] if isinstance(value, list) and value and isinstance(value[0], str | dict | list) else value


def duration(microseconds: int | float | None) -> str:
    """``410 µs``, ``23 ms``, ``1.34 s``, ``2 min 5 s``."""
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


def share(part: int, whole: int) -> str:
    """``98.7 %``. Never 100 % while one is missing, never 0 % while there is one."""
    if not whole:
        return DASH
    percent = 100 * part / whole
    if 0 < part < whole:
        percent = min(max(percent, 0.01), 99.99)
        return f"{percent:.2f} %" if percent > 99.9 or percent < 0.1 else f"{percent:.1f} %"
    return f"{percent:.0f} %"


def count(number: int | None) -> str:
    """``12,345``."""
    return DASH if number is None else f"{number:,}"


def n_of(number: int) -> str:
    """``n=12,345``."""
    return f"n={number:,}"


def ratio(value: float | None) -> str:
    """``3.4``."""
    return DASH if value is None else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def bytes_of(number: int | None) -> str:
    """``512 B``, ``4.4 kB``."""
    if number is None:
        return DASH
    return f"{number} B" if number < 1_000 else f"{number / 1e3:.1f} kB" if number < 1_000_000 else f"{number / 1e6:.1f} MB"


def sparkline(gaps_us: Sequence[int]) -> str:
    """One block a gap, by its logarithm: up to 25 ms the lowest, from 2 s on the highest."""
    return "".join(
        _BLOCKS[sum(gap >= edge for edge in (25_000, 50_000, 100_000, 250_000, 400_000, 1_000_000, 2_000_000))] for gap in gaps_us
    )
