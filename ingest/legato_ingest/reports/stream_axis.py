"""The recordings of a stream on one time axis: their order, and their starts on a clock that they share.

``clock`` of a recording is ``boot id:time namespace:anchor``; wall time = anchor + monotonic time. This module queries nothing and renders
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from legato_ingest.definitions import VANTAGES
from legato_ingest.reports.rows import Row

__all__ = ["PLACE", "first_starts", "ordered", "shared_clock"]

AnyRow = TypeVar("AnyRow", bound=Row)
PLACE = {name: place for place, name in enumerate(VANTAGES)}
"""The place of a vantage on the way from the engine to the end user."""


def first_starts(rows: Sequence[Row]) -> dict[str, int]:
    """Return the earliest start of each response in ns, by response id."""
    first: dict[str, int] = {}
    for row in rows:
        start = int(row["start_ns"])
        first[row["response_id"]] = min(start, first.get(row["response_id"], start))
    return first


def ordered(rows: Sequence[AnyRow]) -> list[AnyRow]:
    """Return the rows grouped by response, each response's vantages from the engine to the end user."""
    first = first_starts(rows)
    return sorted(rows, key=lambda row: (first[row["response_id"]], row["response_id"], PLACE.get(row["vantage"], 9), int(row["start_ns"])))


def shared_clock(rows: Sequence[Row]) -> list[int] | None:
    """Return each row's start in ns on the monotonic clock that all rows share, or None when their clocks differ or are unknown.

    Two processes of one host take their anchors at different moments, and the wall clock may be set in between. Without the anchors the
    starts are exactly comparable.
    """
    clocks = [_clock(row["clock"]) for row in rows]
    if any(clock is None for clock in clocks) or len({clock[0] for clock in clocks if clock}) != 1:
        return None
    return [int(row["start_ns"]) - clock[1] for row, clock in zip(rows, clocks, strict=True) if clock]


def _clock(text: str) -> tuple[str, int] | None:
    name, _, anchor = text.rpartition(":")
    return (name, int(anchor)) if name.count(":") == 1 and anchor.removeprefix("-").isdecimal() else None
