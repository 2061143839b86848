"""The dashboard `cost`: each panel equals a loop over the streams, at the prices in the text boxes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from helpers.dashboards.panels import Asked, Past, Row, View, by, check, grouped, panels, ratio, shown

BOARD = "cost"
SETTINGS = {"price_received": "0.10", "price_kept": "0.025", "months_kept": " 3 ", "event_bytes": "85", "span_bytes": "106"}
RECEIVED, KEPT, MONTHS, EVENT, SPAN = (float(text) for text in SETTINGS.values())


def _bytes(rows: list[Row]) -> int:
    return sum(row["otlp_bytes"] for row in rows)


def _chunks(rows: list[Row]) -> int:
    return sum(row["chunks"] or 0 for row in rows)


def _cost(rows: list[Row], at_rest: float) -> float:
    return _bytes(rows) / 1e9 * RECEIVED + _chunks(rows) * at_rest / 1e9 * KEPT * MONTHS


def _of_chunks(past: Past, view: View) -> list[Row]:
    """The streams of emitters of a service that send the times of chunks."""
    groups = by(shown(past.streams, view), lambda row: (row["service_name"], row["emitter"])).values()
    return [row for rows in groups if _chunks(rows) for row in rows]


def received(past: Past, view: View, at_rest: float) -> list[Row]:
    """Received bytes per chunk, including all attributes."""
    rows = _of_chunks(past, view)
    return [{"bytes per chunk": ratio(_bytes(rows), _chunks(rows)), "n chunks": _chunks(rows)}]


def rests(past: Past, view: View, at_rest: float) -> list[Row]:
    """Stored bytes per chunk of the whole store; the variables do not filter it."""
    return [{"bytes per chunk": at_rest, "n chunks": _chunks(past.streams)}]


def money(past: Past, view: View, at_rest: float) -> list[Row]:
    """The cost of a million chunks."""
    rows = _of_chunks(past, view)
    cost = ratio(_cost(rows, at_rest), _chunks(rows))
    return [{"per million chunks": None if cost is None else 1e6 * cost, "n chunks": _chunks(rows)}]


def other_encodings(past: Past, view: View, at_rest: float) -> list[Row]:
    """The size of other encodings as a multiple of the received bytes."""
    rows = _of_chunks(past, view)
    each = ratio(_bytes(rows), _chunks(rows))
    return [
        {"times, as span events": each and EVENT / each, "times, as one span per chunk": each and SPAN / each, "n chunks": _chunks(rows)}
    ]


def bytes_by_service(past: Past, view: View, at_rest: float) -> list[Row]:
    """Received bytes per service and point."""
    return grouped(
        shown(past.streams, view),
        lambda row: (view.point(row["minute"]), row["service_name"]),
        lambda key, rows: {"time": key[0], "service": key[1], "bytes": _bytes(rows)},
    )


def bytes_a_chunk(past: Past, view: View, at_rest: float) -> list[Row]:
    """Received bytes per chunk, at points with chunks."""
    made = []
    for (at, service), rows in by(shown(past.streams, view), lambda row: (view.point(row["minute"]), row["service_name"])).items():
        if _chunks(rows):
            made.append({"time": at, "service": service, "received per chunk": _bytes(rows) / _chunks(rows)})
    return made


def _with_tokens(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["output_tokens"] is not None and (row["content_chunks"] or 0) > 0]


def _factors(rows: list[Row]) -> tuple[int, int, int]:
    return _bytes(rows), sum(row["output_tokens"] for row in rows), sum(row["content_chunks"] for row in rows)


def why(past: Past, view: View, at_rest: float) -> list[Row]:
    """The change from the previous range to this one, split by the logarithmic mean of both sums; the parts add up to the difference."""
    low, high = view.span.from_ms // 1000, view.span.to_ms // 1000
    chosen = [row for row in _with_tokens(past.streams) if view.shows(row)]
    now = by((row for row in chosen if view.has_minute(row["minute"])), lambda row: row["service_name"])
    before = by((row for row in chosen if low - (high - low) <= row["minute"] < low), lambda row: row["service_name"])
    made = []
    for service in now.keys() & before.keys():
        (b1, t1, c1), (b0, t0, c0) = _factors(now[service]), _factors(before[service])
        if not all((b1, t1, c1, b0, t0, c0)):
            continue
        mean = b1 if b1 == b0 else (b1 - b0) / math.log(b1 / b0)
        parts = [mean * math.log(each) for each in (t1 / t0, (c1 / t1) / (c0 / t0), (b1 / c1) / (b0 / c0))]
        assert math.isclose(sum(parts), b1 - b0, rel_tol=1e-9, abs_tol=1e-6)
        made.append(
            {
                "service": service,
                "bytes more": b1 - b0,
                **dict(zip(("more tokens", "smaller chunks", "more bytes per chunk"), parts, strict=True)),
                "bytes before": b0,
                "bytes now": b1,
                "tokens per chunk before": t0 / c0,
                "tokens per chunk now": t1 / c1,
            }
        )
    return sorted(made, key=lambda row: (-abs(row["bytes more"]), row["service"]))


def by_emitter(past: Past, view: View, at_rest: float) -> list[Row]:
    """One row per service and emitter, most bytes first."""

    def made(key: Any, rows: list[Row]) -> Row:
        chunks, cost = _chunks(rows), _cost(rows, at_rest)
        each = ratio(cost, chunks)
        return {
            "service": key[0],
            "emitter": key[1],
            "streams": len(rows),
            "chunks": chunks,
            "received per stream": _bytes(rows) / len(rows),
            "received per chunk": ratio(_bytes(rows), chunks),
            "at rest per chunk": at_rest,
            "chunks per stream": chunks / len(rows),
            "cost": cost,
            "cost per million chunks": None if each is None else 1e6 * each,
            "cost per stream": cost / len(rows),
            "received as span events": chunks * EVENT / 1e9 * RECEIVED,
            "as one span per chunk": chunks * SPAN / 1e9 * RECEIVED,
        }

    made_rows = grouped(shown(past.streams, view), lambda row: (row["service_name"], row["emitter"]), made)
    return sorted(made_rows, key=lambda row: (-round(row["received per stream"] * row["streams"]), row["service"], row["emitter"]))


def unread(past: Past, view: View, at_rest: float) -> list[Row]:
    """One row per service, most cancelled streams first."""

    def made(service: str, rows: list[Row]) -> Row:
        ends = Counter(row["outcome"] for row in rows)
        failed = ends["timeout"] + ends["upstream_error"] + ends["engine_abort"]
        return {
            "service": service,
            "n": len(rows),
            "cancelled": ends["client_cancel"],
            "abandoned": ends["abandoned"],
            "failed": failed,
        }

    return sorted(
        grouped(shown(past.streams, view), lambda row: row["service_name"], made), key=lambda row: (-row["cancelled"], row["service"])
    )


def processor(past: Past, view: View, at_rest: float) -> list[Row]:
    """The growth of each process's processor time, divided by the chunks of all services; no row for a process without two samples."""
    names = {"legato_cpu_seconds_total": "legato serve", "legato.agent.cpu.time": "legato-gpu-agent"}
    spent: dict[str, float] = {}
    samples = [row for row in past.samples if row["metric"] in names and view.has_ns(row["recorded_at"])]
    for series in by(samples, lambda row: row["series"]).values():
        values = [row["value"] for row in sorted(series, key=lambda row: row["recorded_at"])]
        if len(values) > 1:
            grown = sum(now - before if now >= before else now for before, now in pairwise(values))
            process = names[series[0]["metric"]]
            spent[process] = spent.get(process, 0.0) + grown
    chunks = sum(row["chunks"] or 0 for row in past.streams if view.has_minute(row["minute"]))
    return [
        {"process": process, "processor time": seconds, "n chunks": chunks, "per chunk": ratio(seconds, chunks)}
        for process, seconds in sorted(spent.items())
    ]


EXPECTED = {
    "Received": received,
    "At rest": rests,
    "Cost": money,
    "Compared with other encodings": other_encodings,
    "Bytes received by service": bytes_by_service,
    "Bytes received per chunk": bytes_a_chunk,
    "Why the cost changed": why,
    "By service and emitter": by_emitter,
    "Streams not read to the end": unread,
    "Processor time per chunk": processor,
}
# The entire store, at any range: test_storage_cost.py compares them with ClickHouse's lists of parts.
OF_THE_STORE = {"What would save bytes", "Where the bytes are"}


@pytest.fixture(scope="module")
def at_rest(asked: Asked) -> Iterator[float]:
    """Bytes on disk of all tables per chunk; the value is constant during the tests."""
    yield _on_disk(asked) / _chunks(asked.past.streams)


def _on_disk(asked: Asked) -> int:
    parts = asked.store.select("SELECT bytes_on_disk, active, database FROM system.parts")
    return sum(int(size) for size, active, database in parts if active and database == "default")


@pytest.mark.parametrize("title", EXPECTED)
def test_a_panel_matches_the_streams(asked: Asked, at_rest: float, title: str) -> None:
    """The panel returns the expected rows and columns in every view."""
    check(asked, BOARD, title, partial(EXPECTED[title], at_rest=at_rest), SETTINGS)
    assert _on_disk(asked) / _chunks(asked.past.streams) == at_rest


def test_every_panel_is_expected() -> None:
    """Every panel of the dashboard has an expectation in this module."""
    assert EXPECTED.keys() | OF_THE_STORE == panels(BOARD).keys()
