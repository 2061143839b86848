"""Values of options: one name of several, and a time span. A refusal states what was given and what is expected.

The times of `--from` and `--to` are parsed in ``time_range``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import typer

__all__ = ["one_of", "seconds_of"]

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SECONDS_MAX = 3_650 * 86_400


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    """Return a callback of an option that accepts one of these names, or nothing. It raises ``typer.BadParameter``."""

    def checked(value: str) -> str:
        if value and value not in names:
            raise typer.BadParameter(f"got {value!r}: expected one of {', '.join(names)}")
        return value

    return checked


def seconds_of(since: str) -> int:
    """Return the seconds in ``90s``, ``15m``, ``1h``, ``7d`` or ``2w``; 0 for ``all``. Raises ``typer.BadParameter``."""
    if since == "all":
        return 0
    number, unit = since[:-1], since[-1:]
    if not (number.isascii() and number.isdigit() and unit in _UNITS) or not 0 < int(number) * _UNITS[unit] <= _SECONDS_MAX:
        raise typer.BadParameter(f"{since!r} is not a time span: write 90s, 15m, 1h, 7d, 2w, or all", param_hint="--since")
    return int(number) * _UNITS[unit]
