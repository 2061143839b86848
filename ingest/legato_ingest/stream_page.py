"""`legato stream ID`: one stream, its vantages under each other.

One idea: vantages that share a clock lie on one axis of time; those that do not each begin at their own start, and the page says so.
Times stand in full; what a vantage cannot know is named.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from legato_ingest import queries
from legato_ingest.errors import LegatoError
from legato_ingest.figures import DASH, count, duration, ratio
from legato_ingest.reader import Reader, Row

__all__ = ["find", "render", "stalls_of"]

STALL_US = 250_000
WIDTH = 72
_CONTENT = (1, 2, 3)
_HEX = frozenset("0123456789abcdef")
_WHOLE = frozenset(
    "chunks gaps ttft_us gap_max_us stalls_250ms start_ns duration_ns ttfb_us ttfo_us gap_p50_us gap_p95_us gap_p99_us gap_open_us "
    "starved_4wps_us content_bytes wire_bytes excess_250ms_us hold_max_us".split()
)


def find(reader: Reader, wanted: str) -> list[Row]:
    """All vantages of the stream with this trace, span or response id (8 hex digits of the first two are enough)."""
    wanted = wanted.strip()
    as_hex = wanted.lower()
    if len(as_hex) < 8 or not set(as_hex) <= _HEX:
        as_hex = "-"
    matches = reader.rows(queries.FIND, id=wanted, hex=as_hex)
    traces = sorted({row["trace"] for row in matches})
    if not traces:
        raise LegatoError(f"no stream has the trace, span or response id {wanted!r}: `legato streams` lists them")
    responses = {row["response_id"] for row in matches if row["response_id"]}
    if len(traces) > 1 and len(responses) > 1:
        raise LegatoError(f"{wanted!r} is the beginning of {len(traces)} traces: {', '.join(traces[:5])} …; give more digits")
    rows = reader.rows(queries.STREAM, trace=traces[0], response=next(iter(responses), ""))
    return [{key: int(value) if key in _WHOLE and value is not None else value for key, value in row.items()} for row in rows]


def stalls_of(row: Row) -> list[Row]:
    """The stalls of one vantage: µs from its start to the stall's begin, its length, what ended it, the hold before it where known."""
    times = list(accumulate(row["dt_us"]))
    content = [i for i, kind in enumerate(row["chunk_kind"]) if kind in _CONTENT]
    found = []
    for before, after in zip(content, content[1:], strict=False):
        gap = times[after] - times[before]
        if gap >= STALL_US:
            together = [i for i in content if times[i] == times[after]]
            holds = row["chunk_hold_64us"]
            found.append(
                {
                    "at_us": times[before],
                    "gap_us": gap,
                    "chunks_after": len(together),
                    "bytes_after": sum(row["chunk_bytes"][i] for i in together) if row["chunk_bytes"] else None,
                    "hold_us": sum(holds[before:after]) * 64 if holds else None,
                    "open": False,
                }
            )
    if row["gap_open_us"] is not None and row["gap_open_us"] >= STALL_US and content:
        last = times[content[-1]]
        found.append({"at_us": last, "gap_us": row["gap_open_us"], "chunks_after": 0, "bytes_after": 0, "hold_us": None, "open": True})
    return found


def render(rows: list[Row]) -> RenderableType:
    """The page for a terminal."""
    first = rows[0]
    title = Text.assemble(("stream ", "bold"), first["trace"], f"  {first['model']}  {first['started']} UTC  {first['response_id']}")
    parts: list[RenderableType] = [title, _facts(rows), _axis(rows)]
    parts += [_stall_table(row) for row in rows if row["dt_us"]]
    return Group(*parts)


def _facts(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for row in rows:
        table.add_column(str(row["vantage"]), justify="right")
    lines: tuple[tuple[str, Callable[[Row], object]], ...] = (
        ("service", lambda row: row["service_name"] or DASH),
        ("outcome", lambda row: row["outcome"] + (f" ({row['error_type']})" if row["error_type"] else "")),
        ("duration", lambda row: duration(row["duration_ns"] / 1000)),
        ("chunks (gaps)", lambda row: f"{count(row['chunks'])} ({count(row['gaps'])})"),
        ("TTFB / TTFT / TTFO", lambda row: " / ".join(duration(row[key]) for key in ("ttfb_us", "ttft_us", "ttfo_us"))),
        ("gap p50 / p95", lambda row: f"{duration(row['gap_p50_us'])} / {duration(row['gap_p95_us'])}"),
        ("gap p99", lambda row: duration(row["gap_p99_us"]) + (" (max)" if row["gaps"] and row["gaps"] <= 100 else "")),
        ("gap max (open)", lambda row: f"{duration(row['gap_max_us'])} ({duration(row['gap_open_us'])})"),
        ("stalls ≥ 250 ms", lambda row: count(row["stalls_250ms"])),
        ("jitter ratio", lambda row: ratio(row["jitter_ratio"])),
        ("tokens a chunk", lambda row: ratio(row["tokens_per_chunk"])),
        ("head burst / tail flush", lambda row: f"{ratio(row['head_burst'])} / {ratio(row['tail_flush'])}"),
        ("starved at 4 words/s", lambda row: duration(row["starved_4wps_us"])),
        ("longest hold", lambda row: duration(row["hold_max_us"])),
        ("span on the wire", lambda row: f"{row['otlp_bytes']:,} B"),
        ("notes", lambda row: ", ".join(row["flags"]) or DASH),
    )
    for name, cell in lines:
        table.add_row(name, *(Text(str(cell(row))) for row in rows))
    return table


def _axis(rows: list[Row]) -> RenderableType:
    """A row of marks a vantage: how much content came in each slice of time."""
    clocks = {tuple(row["clock"].split(":")[:2]) for row in rows}
    shared = len(clocks) == 1 and clocks != {("",)}
    origin = min(row["start_ns"] for row in rows)
    end_us = max((row["start_ns"] - origin) // 1000 * shared + row["duration_ns"] // 1000 for row in rows) or 1
    lines = [Text(f"{'':8} 0 {'':{WIDTH - 10}}{duration(end_us):>8}")]
    for row in rows:
        shift = (row["start_ns"] - origin) // 1000 if shared else 0
        lines.append(Text(f"{row['vantage']:8} ") + Text(_marks(row, shift, end_us)))
    note = "one clock, one axis" if shared else "clocks apart: each vantage begins at its own start"
    return Group(*lines, Text(f"{'':8} {note}; each mark is {duration(end_us / WIDTH)}", "dim"))


def _marks(row: Row, shift_us: int, end_us: int) -> str:
    slots = [0] * WIDTH
    for time, kind in zip(accumulate(row["dt_us"]), row["chunk_kind"], strict=True):
        if kind in _CONTENT:
            slots[min(WIDTH - 1, (time + shift_us) * WIDTH // end_us)] += 1
    most = max(slots, default=0) or 1
    return "".join(" " if not n else "▁▂▃▄▅▆▇█"[min(7, n * 8 // (most + 1))] for n in slots)


def _stall_table(row: Row) -> RenderableType:
    stalls = stalls_of(row)
    if not stalls:
        return Text(f"{row['vantage']}: no stall of 250 ms or more")
    table = Table(title=f"{row['vantage']}: stalls", title_justify="left", box=None, pad_edge=False)
    for heading in ("at", "for", "then came", "held by the application"):
        table.add_column(heading, justify="right")
    for stall in stalls:
        then = "the end" if stall["open"] else f"{stall['chunks_after']} chunks, {count(stall['bytes_after'])} B"
        table.add_row(duration(stall["at_us"]), duration(stall["gap_us"]), then, duration(stall["hold_us"]))
    return table
