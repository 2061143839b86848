"""The data of one stream's page: its vantages on one time axis, its stalls with their verdicts, and the engine in the same time.

``stream_view`` puts the recordings that `reports.find_stream` finds on one axis, and asks `stream_verdicts` and `stream_lanes` for the
rest. All times are µs since the start of the axis. This module judges no stream and renders nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legato_ingest.definitions import HOLD_STEP_US, STALL_MS
from legato_ingest.reports.find_stream import NoSuchStream, find_stream
from legato_ingest.reports.rows import Row, Run
from legato_ingest.reports.silences import silence_end_us
from legato_ingest.reports.stream_axis import PLACE, first_starts, ordered, shared_clock
from legato_ingest.reports.stream_gaps import content_reads, has_known_stalls, stalls_of, timeline_of
from legato_ingest.web.stream_lanes import engine_lanes
from legato_ingest.web.stream_verdicts import Gap, but_for, engine_of, judged_stalls

__all__ = ["VANTAGES_SHOWN", "NoSuchStream", "stream_view"]

Ints = NDArray[np.int64]

VANTAGES_SHOWN = 40
"""Recordings on one page. A trace of an agent may hold more; the view then counts the others."""
_FACTS = (
    "vantage", "outcome", "error_type", "service", "model", "response_model", "response_id", "finish_reason", "engine_id", "transport",
    "route", "emitter", "start", "trace", "span",
)  # fmt: skip
_FIGURES = (
    "ttfb_us", "ttft_us", "ttfo_us", "chunks", "chunks_dropped", "content_bytes", "input_tokens", "output_tokens", "gaps", "gap_max_us",
    "gap_p50_us", "gap_p99_us", "gap_open_us", "stalls_250ms", "starved_4wps_us", "good",
)  # fmt: skip


def stream_view(run: Run, identity: str, *, stall_us: int = round(STALL_MS * 1_000)) -> dict[str, Any]:
    """Return the page's data of the stream with this trace id, start of a trace id (8 digits or more), span id or response id.

    ``run(sql, parameters)`` returns the rows of a read-only statement of one tenant. The result can be written as JSON; times are in µs
    since the start of the axis, sizes in bytes, one list a column (see ``column``). ``stall_us``: the shortest gap that is a stall.
    Raises ``NoSuchStream``, and what ``run`` raises.
    """
    found = find_stream(run, identity)
    rows = found.rows
    shown = [{**row, "start": f"{row['start'].replace(' ', 'T')}Z"} for row in ordered(rows)[:VANTAGES_SHOWN]]
    offsets, is_one_clock = _offsets_us(shown)
    times = [np.cumsum(integers(row["dt_us"])) + offset for row, offset in zip(shown, offsets, strict=True)]
    end_us = max(_end_us(row, offset, at) for row, offset, at in zip(shown, offsets, times, strict=True))
    felt = max(range(len(shown)), key=lambda number: (len(times[number]) > 0, PLACE.get(shown[number]["vantage"], -1)))
    judged = _judged(shown)
    gaps = [_gaps(row, offset, stall_us) if place in judged else [] for place, (row, offset) in enumerate(zip(shown, offsets, strict=True))]
    stalls, verdicts = judged_stalls(run, shown, offsets, gaps)
    engine, zero_ns = engine_of(verdicts, shown), _zero_ns(shown, offsets)
    return {
        "identity": identity,
        **{name: shown[felt][name] for name in ("service", "model", "outcome", "start", "response_id", "trace")},
        "duration_us": int(end_us),
        "one_clock": is_one_clock,
        "felt": felt,
        "vantages": [_vantage(*each) for each in zip(shown, offsets, times, strict=True)],
        "vantages_left_out": len(rows) - len(shown),
        "is_cut": found.is_cut,
        "gaps_known": any(has_known_stalls(shown[place], stall_us) for place in judged),
        "stalls": stalls,
        "but_for": but_for(run, shown),
        **engine_lanes(run, shown[0]["tenant"], engine, zero_ns, int(end_us)),
    }


def integers(values: Sequence[int | str]) -> Ints:
    """Return numbers of a JSON row as an array: the store may write 64-bit numbers as text."""
    return np.asarray(values).astype(np.int64)


def column(values: Ints) -> list[int] | int:
    """Return a column for JSON: one number if all values are equal (and there is one), else the list of them."""
    if len(values) and (values == values[0]).all():
        return int(values[0])
    listed: list[int] = values.tolist()
    return listed


def _offsets_us(rows: Sequence[Row]) -> tuple[list[int], bool]:
    """The start of each row on the axis, and whether one clock gives them all.

    Rows with a shared clock have exact starts. Otherwise no clock is compared with another: the vantages of one response start together, at
    the earliest of their starts.
    """
    starts = shared_clock(rows)
    if starts is not None:
        return [(start - min(starts)) // 1_000 for start in starts], True
    first = first_starts(rows)
    return [(first[row["response_id"]] - min(first.values())) // 1_000 for row in rows], len(rows) == 1


def _zero_ns(rows: Sequence[Row], offsets: Sequence[int]) -> int:
    """The wall time of the axis' start by the clock of the server, where the engine usually runs; else of the first row."""
    place = next((number for number, row in enumerate(rows) if row["vantage"] in ("engine", "server")), 0)
    return int(rows[place]["start_ns"]) - 1_000 * offsets[place]


def _end_us(row: Row, offset: int, at: Ints) -> int:
    return max(offset + max(int(row["duration_ns"]) // 1_000, silence_end_us(row)), int(at[-1]) if len(at) else 0, 1)


def _judged(rows: Sequence[Row]) -> set[int]:
    """The rows with gaps that are judged: the clients; of a trace without a client, the servers; else what was recorded last."""
    for name in ("client", "server"):
        found = {number for number, row in enumerate(rows) if row["vantage"] == name}
        if found:
            return found
    return {len(rows) - 1}


def _gaps(row: Row, offset: int, stall_us: int) -> list[Gap]:
    """The gaps of at least ``stall_us`` between chunks with content: start on the axis, length in µs, whether the stream ended in it."""
    return [(offset + stall.start_us, stall.length_us, stall.open) for stall in stalls_of(row, content_reads(row), stall_us)]


def _vantage(row: Row, offset: int, at: Ints) -> dict[str, Any]:
    """One vantage: facts, figures, and a column for each recorded property of its chunks; None where it was not recorded.

    ``dt_us``: time since the chunk before, for the first one since the start of the axis, so the sums are the times on the axis.
    """
    empty = not len(at)
    known = {name: None if empty or not row[name] else integers(row[name]) for name in ("chunk_bytes", "chunk_tokens", "chunk_hold_64us")}
    holds = known["chunk_hold_64us"]
    return {
        **{name: row[name] for name in _FACTS},
        **{name: None if row[name] is None else int(row[name]) for name in _FIGURES},
        "ended": bool(row["ended"]),
        "timeline": timeline_of(row),
        "offset_us": offset,
        "duration_us": int(row["duration_ns"]) // 1_000,
        "dt_us": np.diff(at, prepend=0).tolist(),
        "kind": None if empty else column(integers(row["chunk_kind"])),
        "bytes": None if known["chunk_bytes"] is None else column(known["chunk_bytes"]),
        "tokens": None if known["chunk_tokens"] is None else column(known["chunk_tokens"]),
        "hold_us": None if holds is None else column(holds * HOLD_STEP_US),
    }
