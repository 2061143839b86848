"""The time range of a report: the last seconds before now, or two ends.

The range is a condition of each query (``queries.within``). This module parses no option; all times are UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

__all__ = ["TimeRange", "utc"]


@dataclass(frozen=True, slots=True)
class TimeRange:
    """``since_s``: seconds before now; ``from_ns``, ``to_ns``: times (unix ns) between which streams started. 0: no limit."""

    since_s: int = 3_600
    from_ns: int = 0
    to_ns: int = 0

    def parameters(self) -> dict[str, str | int]:
        """Return the parameters of the SQL."""
        return {"since_s": self.since_s, "from_ns": self.from_ns, "to_ns": self.to_ns}

    def __str__(self) -> str:
        """The range in words, to follow a noun; empty without a limit."""
        if self.since_s:
            return f" in the last {_span(self.since_s)}"
        begin, end = (utc(each) if each else "" for each in (self.from_ns, self.to_ns))
        return f" from {begin} to {end} UTC" if begin and end else f" since {begin} UTC" if begin else f" before {end} UTC" if end else ""


def utc(ns: int) -> str:
    """Return a time (unix ns) as ``2026-11-23 14:05:30``, in UTC."""
    return f"{datetime.fromtimestamp(ns / 1e9, UTC):%Y-%m-%d %H:%M:%S}"


def _span(seconds: int) -> str:
    for size, name in ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")):
        if seconds % size == 0:
            number = seconds // size
            return f"{number} {name}s" if number > 1 else name
    return f"{seconds} seconds"
