"""`legato live`: the streams in flight, and those that are stalled now, with the state of their engines.

The view is read again every second, and the open gaps grow between two reports. This module renders the rows of ``reports.live``; it judges
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from legato_ingest.cli.client import Reader
from legato_ingest.cli.layout import Column, FittedTable, Prose
from legato_ingest.reports.format import DASH, clean, count, duration, share
from legato_ingest.reports.live import LiveQuery, LiveResult, fetch
from legato_ingest.reports.rows import Row

__all__ = ["follow", "render"]

_EVERY_S = 1.0
_IN_FLIGHT = (
    Column("service", folds=16),
    Column("vantage", folds=8),
    Column("model", drop=2, folds=16),
    Column("in flight", right=True),
    Column("stalled", right=True),
    Column("share", drop=1, right=True),
)
_STALLED = (
    Column("stream"),
    Column("vantage", drop=2),
    Column("service · model", drop=1, folds=16),
    Column("engine", drop=3, folds=14),
    Column("silent for", right=True),
    Column("age", drop=4, right=True),
    Column("cause so far", folds=16),
)
_ENGINES = (
    Column("engine", folds=16),
    Column("running", drop=3, right=True),
    Column("waiting", drop=2, right=True),
    Column("KV cache", right=True),
    Column("preempted", drop=1, right=True),
    Column("steps", drop=4, right=True),
    Column("last step", right=True),
)


def follow(reader: Reader, query: LiveQuery, console: Console) -> None:
    """Show the view and read it again every second, until KeyboardInterrupt. Raises ``ReadError``."""
    with Live(console=console, auto_refresh=False, transient=False) as screen:
        for result in _results(reader, query):
            screen.update(render(result, query), refresh=True)


def _results(reader: Reader, query: LiveQuery) -> Iterator[LiveResult]:
    while True:
        yield fetch(reader.rows, query)
        time.sleep(_EVERY_S)


def render(result: LiveResult, query: LiveQuery) -> RenderableType:
    """Return the result for a terminal."""
    parts: list[RenderableType] = [_in_flight(result)]
    parts += (
        [Text(), _stalled(result.stalled, query.limit)] if result.stalled else [Prose("no stream is stalled (2 s or more without content)")]
    )
    if result.engines:
        parts += [Text(), _engines(result.engines)]
    return Group(*parts)


def _in_flight(result: LiveResult) -> RenderableType:
    stalled: dict[tuple[str, str, str], int] = {}
    for row in result.stalled:
        key = (row["service"], row["vantage"], row["model"])
        stalled[key] = stalled.get(key, 0) + 1
    flying = {(row["service"], row["vantage"], row["model"]): int(row["in_flight"]) for row in result.in_flight}
    if not flying and not stalled:
        return Prose("no stream is in flight, as far as is known: the SDK reports streams in flight every 5 s (legato.configure)")
    table = FittedTable(_IN_FLIGHT)
    for key in sorted({*flying, *stalled}, key=lambda each: (-stalled.get(each, 0), -flying.get(each, 0), each)):
        part, whole = stalled.get(key, 0), flying.get(key)
        names = [clean(name) or DASH for name in key]
        table.add_row(*names, count(whole), count(part), share(part, max(whole, part)) if whole else DASH)
    return table


def _stalled(rows: Sequence[Row], limit: int) -> FittedTable:
    table = FittedTable(_STALLED, "Stalled now")
    for row in (clean(each) for each in rows[:limit]):
        silent = duration(int(row["silence_us"]))
        waits = "waits for its first output" if int(row["gap_start_us"]) == 0 else "not judged yet"
        why = f"{row['cause']} · {row['confidence']}" if row["cause"] else waits
        who = f"{row['service'] or '(no service)'} · {row['model'] or '(no model)'}"
        table.add_row(row["trace"][:12], row["vantage"], who, row["engine"] or DASH, silent, duration(1e6 * int(row["age_s"])), why)
    if len(rows) > limit:
        table.caption = f"and {count(len(rows) - limit)} more (--limit)"
    return table


def _engines(rows: Sequence[Row]) -> FittedTable:
    table = FittedTable(_ENGINES, "Engines in the last minute")
    for row in (clean(each) for each in rows):
        kv = DASH if row["kv_used"] is None else f"{100 * float(row['kv_used']):.0f} %"
        state = (count(_int(row["running"])), count(_int(row["waiting"])), kv, count(_int(row["preempted"])), count(int(row["steps"])))
        table.add_row(row["engine"], *state, f"{max(0, int(row['age_s']))} s ago")
    return table


def _int(value: Any) -> int | None:
    return None if value is None else int(value)
