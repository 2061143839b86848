"""Spans of time as people type them: ``--since 15m``.

One idea: one unit, one letter; anything else is refused with what was expected. It knows no clock.
"""

from __future__ import annotations

import typer

__all__ = ["seconds_of"]

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SECONDS_MAX = 3_650 * 86_400


def seconds_of(since: str) -> int:
    """The seconds in ``90s``, ``15m``, ``1h``, ``7d`` or ``2w``; 0 for ``all``. Raises ``typer.BadParameter``."""
    if since == "all":
        return 0
    number, unit = since[:-1], since[-1:]
    if not (number.isascii() and number.isdigit() and unit in _UNITS) or not 0 < int(number) * _UNITS[unit] <= _SECONDS_MAX:
        raise typer.BadParameter(f"{since!r} is no time span: write 90s, 15m, 1h, 7d, 2w, or all", param_hint="--since")
    return int(number) * _UNITS[unit]
