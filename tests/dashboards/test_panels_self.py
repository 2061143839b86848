"""The dashboard `self`: each panel equals a loop over self-monitoring samples, rejected spans or ClickHouse's list of parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from helpers.dashboards.panels import Asked, Past, Row, View, by, check, grouped, panels, ratio, same, views
from legato_ingest.emitters import BY_NAME

BOARD = "self"
HOUR_MS = 3_600_000


def _samples(past: Past, view: View, *metrics: str) -> list[Row]:
    return [row for row in past.samples if row["metric"] in metrics and view.has_ns(row["recorded_at"])]


def _point(view: View, row: Row) -> int:
    return view.point(row["recorded_at"] // 10**9)


def _gauge(metric: str, named: Callable[[Row], str], value: str = "value", what: str = "what") -> Any:
    """The highest value of each point."""

    def expected(past: Past, view: View) -> list[Row]:
        return grouped(
            _samples(past, view, *metric.split()),
            lambda row: (_point(view, row), named(row)),
            lambda key, rows: {"time": key[0], what: key[1], value: max(row["value"] for row in rows)},
        )

    return expected


def _rates(metrics: str, named: Callable[[Row], str]) -> Any:
    """The growth of counters per minute. A decrease is a restart from 0. The first sample of a range gives no growth, unless its process
    has an earlier one: then the counter appeared with its first event, and grew from 0."""

    def expected(past: Past, view: View) -> list[Row]:
        grown: dict[tuple[int, str], float] = {}
        began = {row["host"]: row["recorded_at"] for row in sorted(_samples(past, view, "legato_up"), key=lambda row: -row["recorded_at"])}
        for series in by(_samples(past, view, *metrics.split()), lambda row: row["series"]).values():
            before = None
            for row in sorted(series, key=lambda row: row["recorded_at"]):
                value, key = row["value"], (_point(view, row), named(row))
                if before is None:
                    before = 0.0 if row["recorded_at"] > began[row["host"]] else value
                more = value - before if value >= before else value
                if view.has_whole_minute(row["recorded_at"] / 10**9):
                    grown[key] = grown.get(key, 0.0) + more
                before = value
        return [{"time": at, "what": what, "per minute": 60 * more / view.seconds_of(at)} for (at, what), more in sorted(grown.items())]

    return expected


def _label(*names: str) -> Callable[[Row], str]:
    return lambda row: ": ".join(row["attributes"][name] for name in names)


def stored(past: Past, view: View) -> list[Row]:
    """Streams and chunks of all vantages and tenants; no row if there are no streams."""
    rows = [row for row in past.streams if view.has_minute(row["minute"])]
    return [{"streams": len(rows), "n chunks": sum(row["chunks"] or 0 for row in rows)}] if rows else []


def _rejected(past: Past, view: View) -> list[Row]:
    return [row for row in past.rejected if view.has_ns(row["received_at"] * 10**6)]


def rejected(past: Past, view: View) -> list[Row]:
    """Rejected spans, each counted once even if it was sent several times."""
    rows = _rejected(past, view)
    return [{"rejected": len(rows), "state": "some rejected" if rows else None, "n reasons": len({row["reason"] for row in rows})}]


def reasons(past: Past, view: View) -> list[Row]:
    """Rejected spans by reason, the most frequent first."""

    def made(key: Any, rows: list[Row]) -> Row:
        named = dict(zip(("reason", "detail", "emitter", "service"), key, strict=True))
        return {**named, "n": len(rows), "newest": max(row["received_at"] for row in rows) * 10**6}

    made_rows = grouped(
        _rejected(past, view), lambda row: (row["reason"], row["detail"], row["emitter"] or "(none)", row["service_name"]), made
    )
    return sorted(made_rows, key=lambda row: (-row["n"], row["reason"], row["detail"], row["emitter"], row["service"]))


def senders(past: Past, view: View) -> list[Row]:
    """Numbers of spans by service and sender, those with the most stored spans first."""
    rows = [row for row in past.senders if view.has_ns(row["received_at"] * 10**6)]

    def made(key: Any, rows: list[Row]) -> Row:
        numbers = {
            result: sum(row["spans"] for row in rows if row["result"] == result) for result in ("stored", "same_response", "ignored")
        }
        family = BY_NAME.get(key[1].partition("/")[0])
        return {
            "service": key[0],
            "emitter or scope": key[1],
            "stored": numbers["stored"],
            "of a stored response": numbers["same_response"],
            "ignored": numbers["ignored"],
            "reasons": ", ".join(sorted({row["reason"] for row in rows if row["result"] == "ignored"})),
            "its rows cannot say": family.missing if family else "",
        }

    named = grouped(rows, lambda row: (row["service_name"], row["emitter"] or f"{row['scope']} {row['scope_version']}"), made)
    return sorted(named, key=lambda row: (-row["stored"], -row["ignored"], row["service"], row["emitter or scope"]))


def from_end_to_row(past: Past, view: View) -> list[Row]:
    """The delay of ended streams received in the last hour of the range: the values at rank ⌊p n⌋."""
    low = max(view.span.from_ms, view.span.to_ms - HOUR_MS)
    rows = [row for row in past.revs if row["ended"] and low <= row["received_at"] <= view.span.to_ms]

    def made(at: int, group: list[Row]) -> Row:
        late = sorted(max(0, row["received_at"] - (row["start_time"] + row["duration_ns"]) // 10**6) / 1000 for row in group)
        return {"time": at, "median": late[int(0.5 * len(late))], "p99": late[int(0.99 * len(late))]}

    return grouped(rows, lambda row: view.point(row["received_at"] // 1000), made)


def collector(past: Past, view: View) -> list[Row]:
    """The used share of each Collector queue, at points where the capacity is known."""
    rows = _samples(past, view, "otelcol_exporter_queue_size", "otelcol_exporter_queue_capacity")
    made = []
    for (at, exporter), group in by(rows, lambda row: (_point(view, row), f"{row['host']} · {row['attributes']['exporter']}")).items():
        size, capacity = ([row["value"] for row in group if row["metric"].endswith(kind)] for kind in ("size", "capacity"))
        if capacity:
            made.append({"time": at, "exporter": exporter, "queue in use": ratio(max(size), max(capacity))})
    return made


EXPECTED = {
    "Streams stored": stored,
    "Rejected": rejected,
    "Spans": _rates(
        " ".join(f"legato_{kind}_spans_total" for kind in ("received", "stored", "duplicate", "ignored")),
        lambda row: row["metric"].removeprefix("legato_").removesuffix("_spans_total"),
    ),
    "Data points": _rates("legato_points_total", _label("outcome")),
    "Rejections over time": _rates(
        "legato_rejected_spans_total legato_rejected_points_total",
        lambda row: f"{'points' if 'points' in row['metric'] else 'spans'}: {row['attributes']['reason']}",
    ),
    "Errors by stage and type": _rates("legato_errors_total", _label("stage", "type")),
    "Responses": _rates(
        "legato_requests_total legato_queries_total",
        lambda row: f"read {row['attributes']['result']}" if "queries" in row["metric"] else f"OTLP {row['attributes']['status']}",
    ),
    "Delay from stream end to row": from_end_to_row,
    "Worker lag": _gauge(
        "legato_rollup_lag_seconds legato_attribution_lag_seconds",
        lambda row: row["metric"].removeprefix("legato_").removesuffix("_lag_seconds"),
        "seconds",
    ),
    "Insert queue": _gauge("legato_queue_bytes", lambda row: row["metric"]),
    "Collector queues": collector,
    "Store size": _gauge("legato_store_bytes", _label("table")),
    "Rejected by reason": reasons,
    "Emitters": senders,
}
SEPARATE = {"Newest rollup", "Store", "Tables"}


@pytest.mark.parametrize("title", EXPECTED)
def test_a_panel_matches_the_self_monitoring(asked: Asked, title: str) -> None:
    """The panel returns the expected rows and columns in every view."""
    check(asked, BOARD, title, EXPECTED[title])


def test_every_panel_is_expected() -> None:
    """Every panel of the dashboard has an expectation in this module."""
    assert EXPECTED.keys() | SEPARATE == panels(BOARD).keys()


def test_the_newest_rollup(asked: Asked) -> None:
    """The time since the newest rollup run, and the number of minutes that all runs in the range computed."""
    (view, *_) = views(asked.past)
    newest_s = max(row["ran_at"] for row in asked.past.rollup_runs) / 1000
    before_s = time.time() - newest_s
    ((ago, minutes),) = asked.panel(BOARD, "Newest rollup", view).rows
    # The panel shows whole seconds.
    assert before_s - 1 <= ago <= time.time() - newest_s + 1
    assert minutes == sum(row["minutes"] for row in asked.past.rollup_runs)
    future = asked.past.view("", -1, 60)
    assert asked.panel(BOARD, "Newest rollup", future).rows == ()


def test_the_store_is_the_sum_of_its_parts(asked: Asked) -> None:
    """The size of the store and of each table, the largest first."""
    names = ("table", "rows", "bytes_on_disk", "min_time")
    listed = asked.store.select(f"SELECT {', '.join(names)} FROM system.parts WHERE active AND database = currentDatabase()")
    parts = [dict(zip(names, row, strict=True)) for row in listed]
    whole = [{"on disk": sum(part["bytes_on_disk"] for part in parts), "n rows": sum(part["rows"] for part in parts)}]

    def made(table: str, group: list[Row]) -> Row:
        size, rows = (sum(part[name] for part in group) for name in ("bytes_on_disk", "rows"))
        oldest = int(min(part["min_time"] for part in group).timestamp())
        return {"table": table, "n": rows, "on disk": size, "parts": len(group), "oldest": oldest or None}

    by_table = sorted(grouped(parts, lambda part: part["table"], made), key=lambda row: (-row["on disk"], row["table"]))
    (view, *_) = views(asked.past)
    same(asked.panel(BOARD, "Store", view), whole)
    same(asked.panel(BOARD, "Tables", view), by_table)
