"""`legato report` and `legato streams`: what the streams of the last hours felt like.

One idea: the figures come from one query and are only arranged here. It computes nothing that the SQL could.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from legato_ingest import queries
from legato_ingest.figures import DASH, count, duration, p99, ratio, share
from legato_ingest.reader import Reader, Row

__all__ = ["NO_STREAMS", "figures", "render", "render_streams", "streams"]

NO_STREAMS = (
    "No streams in this time. Record some: legato.configure(); legato.instrument_openai() in an application, or `make demo`;"
    " look further back with --since."
)


def figures(reader: Reader, *, since_s: int, model: str = "", service: str = "") -> list[Row]:
    """The report's rows, by vantage, service and model; ``goodput`` is None where no stream's gaps are known."""
    rows = reader.rows(queries.REPORT, since_s=since_s, model=model, service=service)
    return [_numbers(row) for row in rows]


def _numbers(row: Row) -> Row:
    """64-bit numbers come as text in ClickHouse's JSON; quantiles of nothing come as 0 or NaN and mean unknown."""
    out: Row = {key: int(value) if isinstance(value, str) and value.isdecimal() else value for key, value in row.items()}
    for key, n in (
        ("gap_p99_of_p99_us", "gap_p99_n"),
        ("jitter_ratio_p50", "jitter_ratio_n"),
        ("ttft_p50_us", "ttft_n"),
        ("ttft_p95_us", "ttft_n"),
    ):
        if key in out and not out[n]:
            out[key] = None
    out["goodput"] = out["good"] / out["timed"] if out["timed"] else None
    return out


def render(rows: list[Row]) -> RenderableType:
    """The report for a terminal: figures down, groups across, as many side by side as 80 columns hold."""
    if not rows:
        return Text(NO_STREAMS)
    tables = [_table(rows[at : at + _ACROSS]) for at in range(0, len(rows), _ACROSS)]
    return Group(*tables, Text(_CAPTION, "dim"))


_ACROSS = 2
_CAPTION = (
    "goodput: no gap over 400 ms, first output within 2 s, no error\n"
    "jitter: median over streams of p99 gap / time-weighted median gap\n"
    "– unknown at this vantage. `legato streams --stalled` lists streams, `legato stream ID` shows one"
)


def _table(rows: list[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for row in rows:
        table.add_column(Text(f"{row['vantage']} · {row['service_name'] or DASH} · {row['model'] or DASH}"), justify="right")
    for name, cell in _LINES:
        table.add_row(name, *(cell(row) for row in rows))
    return table


def _goodput(row: Row) -> Text:
    goodput = row["goodput"]
    style = "" if goodput is None else "green" if goodput >= 0.99 else "yellow" if goodput >= 0.95 else "red"
    return Text(share(row["good"], row["timed"]), style)


def _first_token(row: Row) -> Text:
    times = f"{duration(row['ttft_p50_us'])} / {duration(row['ttft_p95_us'])} (n={row['ttft_n']})"
    return Text(times if row["ttft_n"] else DASH)


_LINES: tuple[tuple[str, Callable[[Row], Text]], ...] = (
    ("streams", lambda row: Text(count(row["streams"]))),
    ("goodput at 400 ms", _goodput),
    ("p99 of p99 gaps", lambda row: Text(p99(row["gap_p99_of_p99_us"], row["gap_p99_n"]))),
    ("longest gap", lambda row: Text(duration(row["gap_worst_us"]))),
    ("stalls ≥ 250 ms", lambda row: Text(f"{count(row['stalls'])} ({duration(row['stalls_excess_us'])} over)" if row["timed"] else DASH)),
    ("jitter ratio", lambda row: Text(f"{ratio(row['jitter_ratio_p50'])} (n={row['jitter_ratio_n']})" if row["jitter_ratio_n"] else DASH)),
    ("TTFT p50 / p95", _first_token),
    ("cancelled / failed", lambda row: Text(f"{count(row['cancelled'])} / {count(row['failed'])}")),
    ("chunks", lambda row: Text(count(row["chunks_total"]))),
)


def streams(reader: Reader, **filters: Any) -> list[Row]:
    """The newest streams first."""
    rows = reader.rows(queries.STREAMS, **filters)
    return [{key: int(value) if key in _WHOLE and value is not None else value for key, value in row.items()} for row in rows]


_WHOLE = frozenset(("chunks", "gaps", "ttft_us", "gap_max_us", "stalls_250ms"))


def render_streams(rows: list[Row]) -> RenderableType:
    """One line a stream."""
    if not rows:
        return Text(NO_STREAMS)
    table = Table(box=None, pad_edge=False)
    for heading in ("trace", "started (UTC)", "vantage", "model", "outcome"):
        table.add_column(heading, no_wrap=heading != "model")
    for heading in ("chunks", "TTFT", "max gap", "stalls"):
        table.add_column(heading, justify="right")
    for row in rows:
        good = row["good"]
        table.add_row(
            Text(row["trace"][:16], "" if good is None else "green" if good else "red"),
            row["started"],
            row["vantage"],
            Text(str(row["model"])),
            row["outcome"],
            count(row["chunks"]),
            duration(row["ttft_us"]),
            duration(row["gap_max_us"]),
            count(row["stalls_250ms"]),
        )
    return Group(table, Text("`legato stream TRACE` shows one with all its vantages"))
