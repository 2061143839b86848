"""The options of a reading command's time range: `--since`, or `--from` and `--to`.

Times without a zone are UTC, like all times that the commands print; `local` after a time means the zone of this machine. The module
parses; the range itself is ``reports.time_range.TimeRange``.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, time

import typer

from legato_ingest.cli.options import seconds_of
from legato_ingest.reports.time_range import TimeRange, utc

__all__ = ["moment_of", "time_range"]

_TODAY = re.compile(r"(\d{1,2})(:\d{2}(?::\d{2})?)(Z|[+-]\d{2}:?\d{2})?")
# The store's times end in the year 2262.
_NS_MAX = 2**63 - 1
_EXPECTED = "write 2026-11-23T14:05, '2026-11-23 14:05:30', 14:05 (today), with +01:00 or local for another zone than UTC"


def time_range(since: str, from_: str, to: str) -> TimeRange:
    """Return the range of a command's options. ``since`` counts only without the two others. Raises ``typer.BadParameter``."""
    if not from_ and not to:
        return TimeRange(seconds_of(since))
    begin, end = (moment_of(text, name) if text else 0 for text, name in ((from_, "--from"), (to, "--to")))
    if begin and end and begin >= end:
        raise typer.BadParameter(f"it is not after --from: {utc(begin)} UTC to {utc(end)} UTC", param_hint="--to")
    return TimeRange(0, begin, end)


def moment_of(text: str, option: str) -> int:
    """Return a time in ns since the epoch. Raises ``typer.BadParameter``.

    A time without a date is today. In the future only an end may be: soon after midnight, another one is meant of the day before.
    """
    given, zone = text.strip(), UTC
    if given.endswith("local"):
        given, zone = given.removesuffix("local").strip(), None  # type: ignore[assignment]
    try:
        if today := _TODAY.fullmatch(given):
            hour, rest, offset = today.groups()
            day = datetime.now(time.fromisoformat(f"00:00{offset}").tzinfo if offset else zone)
            given = f"{day:%Y-%m-%d}T{hour:0>2}{rest}{offset or ''}"
        moment = datetime.fromisoformat(given)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC) if zone else moment.astimezone()
        elif zone is None:
            raise typer.BadParameter(f"{text!r} has two zones: {_EXPECTED}", param_hint=option)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is no time: {_EXPECTED}", param_hint=option) from None
    moment_ns = min(max(0, round(moment.timestamp() * 1e6)) * 1_000, _NS_MAX)
    if today and option != "--to" and moment > datetime.now(UTC):
        raise typer.BadParameter(f"{utc(moment_ns)} UTC is in the future: give the date, too", param_hint=option)
    return moment_ns
