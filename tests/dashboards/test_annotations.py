"""Annotations and variables of the dashboards: marks at releases and SLO breaches, and the values of the variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.dashboards.panels import BOARDS, DIMENSIONS, NODES, Asked, Past, Row, View, by, same, shown, statements, views

MARKED = [name for name in BOARDS if name not in ("nodes", "now", "runbook", "stream", "self")]


def releases(past: Past, view: View) -> list[Row]:
    """The first minute of each release, if it is later than the first two minutes of the range."""
    rows = [row for row in shown(past.streams, view) if row["service_version"]]
    made = []
    for (service, release), group in by(rows, lambda row: (row["service_name"], row["service_version"])).items():
        first = min(row["minute"] for row in group)
        if first > view.span.from_ms // 1000 + 120:
            made.append({"time": first, "title": f"release {service} {release}", "text": "its first stream"})
    return made


def breaches(past: Past, view: View) -> list[Row]:
    """Intervals of 5 minutes of a service at a vantage in which at least 3 streams and at least a fifth of the judged ones are bad."""
    rows = [row for row in shown(past.streams, view) if row["is_judged"]]
    made = []
    for (at, service, vantage), group in by(rows, lambda row: (row["minute"] // 300 * 300, row["service_name"], row["vantage"])).items():
        good = sum(not row["bad"] for row in group)
        if len(group) - good >= 3 and good <= 0.8 * len(group):
            percent = f"{float(np.rint(1000 * good / len(group)) / 10):.1f}".removesuffix(".0")
            made.append(
                {
                    "time": at,
                    "timeEnd": at + 300,
                    "title": f"goodput {service} {vantage}",
                    "text": f"{percent} % of {len(group)} streams",
                }
            )
    return made


@pytest.mark.parametrize(("mark", "expected"), [("Releases", releases), ("SLO breaches", breaches)])
def test_annotations_match_the_streams(asked: Asked, mark: str, expected: Any) -> None:
    """Annotations are the same on every dashboard that has them, ordered by time; those with the same time may be in any order."""
    (sql,) = {statements(name)[f"annotation {mark}"] for name in MARKED}
    compared = 0
    for view in views(asked.past):
        answer = asked.sql(sql, view)
        times = [row[0] for row in answer.rows]
        assert times == sorted(times)
        should = sorted(expected(asked.past, view), key=lambda row: tuple(row.values()))
        assert len(should) < 100
        same(type(answer)(200, "", answer.columns, tuple(sorted(answer.rows))), should, f"{mark}, {view.name}")
        compared += len(should)
    assert compared


@pytest.mark.parametrize("name", BOARDS)
def test_a_variable_lists_every_value_in_the_range(asked: Asked, name: str) -> None:
    """Every value in the range is listed once, in ascending order; an empty value is listed as `(none)`."""
    live = {variable: DIMENSIONS[variable] for variable in ("tenant", "service", "model", "vantage")}
    columns = {"stream": {}, "runbook": {}, "self": {}, "nodes": NODES, "now": live}.get(name, DIMENSIONS)
    variables = {title: sql for title, sql in statements(name).items() if title.startswith("variable ")}
    # `test_panels_compare` has those that choose what is compared.
    others = ["variable by", "variable a", "variable b"] if name == "compare" else []
    assert list(variables) == [*(f"variable {variable}" for variable in columns), *others]
    # Engines are known from steps and from scraped metrics. `test_panels_nodes` has the hosts, and what a chosen service leaves.
    metrics = ("legato.engine.up", "vllm:num_requests_running")
    scraped = [row for row in asked.past.samples if row["metric"] in metrics] if name == "nodes" else []
    for view in views(asked.past)[:3]:
        for variable, column in ((variable, column) for variable, column in columns.items() if variable != "host"):
            of_engines = name == "nodes" and variable in ("tenant", "engine")
            rows = asked.past.steps if of_engines else asked.past.streams
            names = {row[column] or "(none)" for row in rows if view.has_minute(row["minute"])}
            read = [row for row in scraped if view.has_ns(row["recorded_at"]) and view.has_minute(row["recorded_at"] // 10**9 // 60 * 60)]
            names |= {row[column] or "(none)" for row in read if of_engines}
            expected = [{"name": each} for each in sorted(names, key=str.encode)]
            same(asked.sql(variables[f"variable {variable}"], view), expected, f"{variable}, {view.name}")


@pytest.mark.parametrize("name", ["nodes", "stream", "self"])
def test_other_dashboards_have_no_marks(name: str) -> None:
    """Annotations are filtered by variables that these dashboards do not have."""
    assert not any(title.startswith("annotation ") for title in statements(name))
