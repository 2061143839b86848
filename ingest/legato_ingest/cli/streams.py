"""`legato streams` and `legato stream ID`: a list of the newest streams, and one stream with all its vantages.

Stored timelines are drawn on one time axis when the vantages share a clock, otherwise each from its own start; facts that a vantage cannot
measure are listed. This module renders rows of ``reports``; it sends no query and judges no stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from legato_ingest.cli.layout import Column, FittedTable, Prose
from legato_ingest.cli.verdict_text import evidence_lines, why
from legato_ingest.definitions import ERRORS
from legato_ingest.reports.format import DASH, bytes_of, clean, count, duration, ratio, some, sparkline
from legato_ingest.reports.rows import Row
from legato_ingest.reports.silences import silence_end_us
from legato_ingest.reports.stream_axis import ordered, shared_clock
from legato_ingest.reports.stream_gaps import (
    EXPIRED,
    STALL_US,
    STORED,
    UNKNOWN,
    Read,
    Stall,
    content_reads,
    has_known_stalls,
    stalls_of,
    timeline_of,
)

__all__ = ["as_json", "render_list", "render_stream"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_ARRAYS = ("dt_us", "chunk_bytes", "chunk_tokens", "chunk_kind", "chunk_hold_64us")
_KINDS = {0: "role", 1: "text", 2: "reasoning", 3: "tool", 4: "usage", 5: "heartbeat", 6: "retract", 7: "done"}
_STALLS_SHOWN = 40
# The start of a stream, the longest number among the facts, fits.
_FACT_WIDTH = 29
_LIST = (
    Column("stream"),
    Column("start (UTC)", drop=5),
    Column("model ·\nservice", folds=12),
    Column("vantage", drop=4),
    Column("outcome"),
    Column("good"),
    Column("chunks", drop=7, right=True),
    Column("TTFT", drop=3, right=True),
    Column("worst gap", right=True),
    Column("stalls", drop=6, right=True),
    Column("gaps over time", drop=8),
)
_STALLS = (
    Column("at", right=True),
    Column("for", right=True),
    Column("held in it", drop=1, right=True),
    Column("followed by", drop=2),
    Column("why", folds=32),
)
_JUDGED = (_STALLS[0], _STALLS[1], _STALLS[-1])
_NO_TIMELINE = {EXPIRED: "timeline no longer stored", UNKNOWN: "timeline unknown"}


def render_list(rows: Sequence[Row], more: bool = False) -> RenderableType:
    """Return the newest streams, one line each."""
    rows = [clean(row) for row in rows]
    table = FittedTable(_LIST)
    for row in rows:
        table.add_row(
            row["trace"][:12],
            row["start"][5:19],
            f"{row['model']} · {row['service']}",
            row["vantage"],
            _state(row),
            Text("no", style="red") if row["good"] == 0 else "yes" if row["good"] else DASH,
            count(row["chunks"]),
            duration(row["ttft_us"]),
            duration(row["gap_max_us"]),
            count(row["stalls_250ms"]),
            Text.assemble(sparkline(row["spark"]), (sparkline([row["gap_open_us"]]), "red") if row["gap_open_us"] is not None else ""),
        )
    last = "There are more: raise --limit. " if more else ""
    is_open = any(row["gap_open_us"] is not None for row in rows)
    last += "The last, red block of the gaps over time is the open gap at the end. " if is_open else ""
    return Group(table, Prose(f"{last}To see one stream: legato stream {rows[0]['trace'][:12]}", style="dim"))


def _state(row: Row) -> Text:
    """The outcome, and since when a running stream stands still."""
    if row.get("silence"):
        return Text(f"{row['outcome']}\nsilent {duration(row['silence']['silence_us'])}", style="red")
    return Text(row["outcome"], style="red" if row["outcome"] in ERRORS else "")


def as_json(rows: Sequence[Row], stall_us: int = STALL_US) -> list[dict[str, Any]]:
    """Return the vantages as data, each with its gaps of at least ``stall_us`` (None: not known); timelines as stored."""
    starts = shared_clock(rows)
    out = []
    for index, row in enumerate(rows):
        stalls = [stall.as_dict() for stall in stalls_of(row, content_reads(row), stall_us)]
        offset = None if starts is None else (starts[index] - min(starts)) // 1_000
        out.append({**row, "offset_us": offset, "stalls": stalls if has_known_stalls(row, stall_us) else None})
    return out


def render_stream(rows: Sequence[Row], width: int = 100, stall_us: int = STALL_US) -> RenderableType:
    """Return one stream: facts, timelines, and gaps of at least ``stall_us``."""
    rows = ordered([clean(row) for row in rows])
    reads = [content_reads(row) for row in rows]
    stalls = [stalls_of(row, read, stall_us) for row, read in zip(rows, reads, strict=True)]
    parts: list[RenderableType] = [*_facts(rows, width), Text(), *_axis(rows, reads, stalls, max(width - 24, 20)), Text()]
    for row, found in zip(rows, stalls, strict=True):
        parts.extend(_stalls(row, found, stall_us))
    return Group(*parts)


def _facts(rows: Sequence[Row], width: int) -> Iterator[RenderableType]:
    """The facts that are the same at all vantages, then the others with one column a vantage; vantages that do not fit get tables below."""
    facts = [(name, values) for name, values in _fact_rows(rows) if any(value not in ("", DASH) for value in values)]
    facts.append(("not measured", [_unknown(row) for row in rows]))
    own = [fact for fact in facts if len(set(fact[1])) > 1 or fact[0] == "vantage"]
    shared = [(name, values[:1]) for name, values in facts if (name, values) not in own]
    label = max(len(name) for name, _ in facts)
    at_once = max(1, (width - label) // (_FACT_WIDTH + 2))
    parts = [[(name, values[first : first + at_once]) for name, values in own] for first in range(0, len(rows), at_once)]
    for number, part in enumerate([shared, *parts]):
        if number:
            yield Text()
        yield _fact_table([(name, values) for name, values in part if any(value not in ("", DASH) for value in values)], label)


def _fact_table(facts: Sequence[tuple[str, Sequence[str]]], label: int) -> FittedTable:
    """The first fact is the header."""
    (name, values), *others = facts
    table = FittedTable([Column(f"{name:<{label}}"), *(Column(value, folds=_FACT_WIDTH) for value in values)])
    for name, values in others:
        table.add_row(Text(name, style="dim"), *values)
    return table


def _fact_rows(rows: Sequence[Row]) -> Iterator[tuple[str, list[str]]]:
    """The facts, each with one value per vantage."""
    yield "vantage", [f"{row['vantage']} · {row['service']}" for row in rows]
    yield "trace", [row["trace"] for row in rows]
    yield "span", [row["span"] for row in rows]
    yield "response", [row["response_id"] for row in rows]
    yield "model", [" → ".join(dict.fromkeys(filter(None, (row["model"], row["response_model"])))) for row in rows]
    yield "start (UTC)", [row["start"] for row in rows]
    yield "duration", [duration(int(row["duration_ns"]) / 1_000) for row in rows]
    yield "outcome", [_outcome(row) for row in rows]
    yield "good", [{1: "yes", 0: "no"}.get(row["good"], DASH) for row in rows]
    yield "chunks", [_chunks(row) for row in rows]
    yield "TTFB / TTFT / TTFO", [" / ".join(duration(row[name]) for name in ("ttfb_us", "ttft_us", "ttfo_us")) for row in rows]
    yield "queue / prefill in TTFT", [_request(row) for row in rows]
    yield "gap p50 / p99 / worst", [_gaps(row) for row in rows]
    yield "jitter ratio", [ratio(row["jitter_ratio"]) for row in rows]
    yield "tokens in / out", [f"{count(row['input_tokens'])} / {count(row['output_tokens'])}" for row in rows]
    yield "held by the application", [_held(row) for row in rows]
    yield "transport", [f"{row['transport'] or DASH}, {bytes_of(row['wire_bytes'])} on the wire" for row in rows]
    yield "route", [row["route"] for row in rows]
    yield "engine", [row["engine_id"] for row in rows]
    yield "recorded by", [row["emitter"] for row in rows]
    yield "flags", [", ".join(row["flags"]) for row in rows]


def _outcome(row: Row) -> str:
    details = [row["finish_reason"], row["error_type"], "" if row["ended"] else f"snapshot {row['rev']}"]
    return " · ".join(filter(None, (row["outcome"], *details)))


def _chunks(row: Row) -> str:
    kinds: dict[str, int] = {}
    for kind in row["chunk_kind"]:
        name = _KINDS.get(kind, f"kind {kind}")
        kinds[name] = kinds.get(name, 0) + 1
    dropped = f", {count(row['chunks_dropped'])} beyond the limit" if row["chunks_dropped"] else ""
    described = ", ".join(f"{count(number)} {name}" for name, number in kinds.items())
    return f"{count(row['chunks'])}{dropped}" + (f" ({described}; {bytes_of(row['content_bytes'])})" if kinds else "")


def _gaps(row: Row) -> str:
    """The stored p99 of up to 100 gaps is their maximum, and the label says so."""
    label = "p99" if (row["gaps"] or 0) > 100 else "max"
    return f"{duration(row['gap_p50_us'])} / {label} {duration(row['gap_p99_us'])} / {duration(row['gap_max_us'])} (n={count(row['gaps'])})"


def _request(row: Row) -> str:
    """The engine's times of the request before its first token; the rest of the TTFT is the front end and the network."""
    request = row.get("request")
    return DASH if request is None else f"{duration(int(request['queued_us']))} / {duration(int(request['prefill_us']))}"


def _held(row: Row) -> str:
    return DASH if row["hold_sum_us"] is None else f"{duration(row['hold_sum_us'])}, longest {duration(row['hold_max_us'])}"


def _unknown(row: Row) -> str:
    if row["content_chunks"] is None:
        return "the timeline: its span had only a summary, so no gap is known"
    if timeline_of(row) == EXPIRED:
        return "the timeline: it is no longer stored (LEGATO_RETENTION_TIMELINES_DAYS)"
    missing = [
        ("reads and the first byte (recorded above the network)", row["transport"] == "iterator"),
        ("the first byte", row["ttfb_us"] is None and row["transport"] != "iterator"),
        ("the start of its request, so the first token (legato.wrap without start_ns)", "start_unknown" in row["flags"]),
        ("bytes of content", not row["chunk_bytes"] and bool(row["dt_us"])),
        ("tokens of each chunk", not row["chunk_tokens"] and bool(row["dt_us"])),
        ("tokens of the response", row["output_tokens"] is None),
        ("time held by the application", not row["chunk_hold_64us"] and bool(row["dt_us"])),
        ("its clock", not row["clock"]),
    ]
    return "; ".join(name for name, is_missing in missing if is_missing) or "everything was measured"


def _axis(rows: Sequence[Row], reads: Sequence[Sequence[Read]], stalls: Sequence[Sequence[Stall]], width: int) -> Iterator[RenderableType]:
    """Each vantage's chunks over time, all with the same scale."""
    starts = shared_clock(rows) if len(rows) > 1 else None
    offsets = [0] * len(rows) if starts is None else [(start - min(starts)) // 1_000 for start in starts]
    lengths = [max(int(row["duration_ns"]) // 1_000, sum(row["dt_us"]), silence_end_us(row), 1) for row in rows]
    ends = [offset + length for offset, length in zip(offsets, lengths, strict=True)]
    step = max(ends) / width
    if len(rows) > 1:
        same = "all vantages have one clock: one time axis"
        yield Prose(same if starts else "the clocks differ or are unknown: each vantage is drawn from its own start", style="dim")
    for row, read, found, offset, end in zip(rows, reads, stalls, offsets, ends, strict=True):
        timeline = timeline_of(row)
        drawn = timeline == STORED
        line = _line(read, found, offset, end, step, width) if drawn else Text(_NO_TIMELINE[timeline], style="dim")
        yield Text(f"{row['vantage'][:10]:<10} ", style="bold").append_text(line)
    yield Text(" " * 11 + f"{'0':<{width - 10}}{duration(max(ends)):>10}", style="dim")
    yield Prose(f"one mark: {duration(step)}. Height: chunks in this time. · no chunk, ─ stall, ╌ open gap", style="dim")


def _line(reads: Sequence[Read], stalls: Sequence[Stall], offset: int, end: int, step: float, width: int) -> Text:
    counts = [0] * width
    for read in reads:
        counts[min(int((offset + read.at_us) / step), width - 1)] += read.chunks
    top = max(counts) or 1
    marks = [" " if (place + 1) * step <= offset or place * step >= end else "·" for place in range(width)]
    for stall in stalls:
        first, last = (offset + stall.start_us) / step, (offset + stall.start_us + stall.length_us) / step
        for place in range(int(first), min(int(last) + 1, width)):
            marks[place] = "╌" if stall.open else "─"
    line = Text()
    for number, mark in zip(counts, marks, strict=True):
        if number:
            line.append(_BLOCKS[(number * 8 - 1) // top], style="cyan")
        else:
            line.append(mark, style="red" if mark in "─╌" else "dim")
    return line


def _stalls(row: Row, stalls: Sequence[Stall], stall_us: int) -> Iterator[RenderableType]:
    """The table of stalls, or the sentence that there are none."""
    least = duration(stall_us)
    who = f"{row['vantage']} · {row['service']}"
    if row.get("silence"):
        yield _silence(row, who)
    if timeline_of(row) == UNKNOWN:
        return
    if not has_known_stalls(row, stall_us):
        yield from _judged(row, who, stall_us)
        return
    if not stalls:
        if not row.get("silence"):
            yield Prose(f"{who}: no stall of {least} or more", style="dim")
        return
    yield Text(f"{who}: stalls of {least} or more", style="bold")
    verdicts = {int(verdict["gap_start_us"]): verdict for verdict in row.get("verdicts", ())}
    table = FittedTable(_STALLS if verdicts else _STALLS[:-1])
    for stall in stalls[:_STALLS_SHOWN]:
        held = "unknown" if stall.held_us is None else duration(stall.held_us)
        cells = [duration(stall.start_us), duration(stall.length_us), held, _after(row, stall)]
        table.add_row(*cells, *([why(verdicts.get(stall.start_us))] if verdicts else []))
    yield table
    judged = [verdicts[stall.start_us] for stall in stalls if stall.start_us in verdicts]
    if judged:
        yield from evidence_lines(max(judged, key=lambda verdict: int(verdict["gap_us"])))
    if len(stalls) > _STALLS_SHOWN:
        yield Prose(f"and {len(stalls) - _STALLS_SHOWN:,} more: --json lists all of them", style="dim")


def _silence(row: Row, who: str) -> RenderableType:
    """The sentence about a running stream that stands still. Its newest chunks may not be stored yet."""
    silence = row["silence"]
    verdict = next((each for each in row.get("verdicts", ()) if int(each["gap_start_us"]) == silence["gap_start_us"]), None)
    waits = "not judged yet" if silence["gap_start_us"] else "waits for its first output"
    because = why(verdict) if verdict and silence["gap_start_us"] else waits
    return Prose(f"{who}: silent for {duration(silence['silence_us'])}, still running: {because}", style="red")


def _judged(row: Row, who: str, stall_us: int) -> Iterator[RenderableType]:
    """What is known of the stalls of an expired timeline: their number, and the verdicts on them."""
    number = f"{count(row['stalls_250ms'])} of 250 ms or more, the longest {duration(row['gap_max_us'])}"
    yield Prose(f"{who}: the times of its stalls are no longer stored ({number})", style="dim")
    judged = [verdict for verdict in row.get("verdicts", ()) if int(verdict["gap_us"]) >= stall_us]
    if not judged:
        return
    table = FittedTable(_JUDGED, "Stalls with a verdict")
    for verdict in judged[:_STALLS_SHOWN]:
        table.add_row(duration(int(verdict["gap_start_us"])), duration(int(verdict["gap_us"])), why(verdict))
    yield table
    yield from evidence_lines(max(judged, key=lambda verdict: int(verdict["gap_us"])))
    if len(judged) > _STALLS_SHOWN:
        yield Prose(f"and {len(judged) - _STALLS_SHOWN:,} more: --json lists all of them", style="dim")


def _after(row: Row, stall: Stall) -> str:
    if stall.open and row.get("silence"):
        return "nothing yet"
    if stall.open:
        return f"nothing: {row['outcome']}"
    size = "bytes unknown" if stall.bytes is None else bytes_of(stall.bytes)
    return f"{some(stall.chunks or 0, 'chunk')}, {size}"
