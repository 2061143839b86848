"""The time range of a reading command: `--since`, or `--from` and `--to`.

Times without a zone are UTC, like all times that the commands print; `local` after a time means the zone of this machine. The module parses
and computes; the range is a condition of each query (`queries.within`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

import typer

from legato_ingest.cli.format import seconds_of

__all__ = ["TimeRange", "moment_of", "time_range"]

_TODAY = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")
_EXPECTED = "write 2026-11-23T14:05, '2026-11-23 14:05:30', 14:05 (today), with +01:00 or local for another zone than UTC"


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
        begin, end = (_utc(each) if each else "" for each in (self.from_ns, self.to_ns))
        return f" from {begin} to {end} UTC" if begin and end else f" since {begin} UTC" if begin else f" before {end} UTC" if end else ""


def time_range(since: str, from_: str, to: str) -> TimeRange:
    """Return the range of a command's options. ``since`` counts only without the two others. Raises ``typer.BadParameter``."""
    if not from_ and not to:
        return TimeRange(seconds_of(since))
    begin, end = (moment_of(text, name) if text else 0 for text, name in ((from_, "--from"), (to, "--to")))
    if begin and end and begin >= end:
        raise typer.BadParameter(f"it is not after --from: {_utc(begin)} UTC to {_utc(end)} UTC", param_hint="--to")
    return TimeRange(0, begin, end)


def moment_of(text: str, option: str) -> int:
    """Return a time in ns since the epoch. Raises ``typer.BadParameter``."""
    given, zone = text.strip(), UTC
    if given.endswith("local"):
        given, zone = given.removesuffix("local").strip(), None  # type: ignore[assignment]
    if _TODAY.fullmatch(given):
        given = f"{datetime.now(zone):%Y-%m-%d}T{given.zfill(5)}"
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time: {_EXPECTED}", param_hint=option) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC) if zone else moment.astimezone()
    elif zone is None:
        raise typer.BadParameter(f"{text!r} has two zones: {_EXPECTED}", param_hint=option)
    return max(0, round(moment.timestamp() * 1e6)) * 1_000


def _utc(ns: int) -> str:
    return f"{datetime.fromtimestamp(ns / 1e9, UTC):%Y-%m-%d %H:%M:%S}"


def _span(seconds: int) -> str:
    for size, name in ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")):
        if seconds % size == 0:
            number = seconds // size
            return f"{number} {name}s" if number > 1 else name
    return f"{seconds} seconds"
