"""The dashboards' files, the required properties of each panel, and the escaping of variables in their SQL."""

from __future__ import annotations

import pathlib
import re
from collections import defaultdict
from typing import Any

import pytest

from dashboards import boards
from dashboards.__main__ import files
from helpers.dashboards.panel_past import NASTY
from helpers.dashboards.panels import BOARDS, DIMENSIONS, NODES, Asked, View, dashboard, none, panels, panels_in, statements
from legato_ingest.dashboards.macros import Range

STREAM_LINK = "/d/legato-stream/stream?var-stream=${__value.raw}&${__url_time_range}"
LIVE = {name: DIMENSIONS[name] for name in ("tenant", "service", "model", "vantage")}
FILTERED = {name: {"nodes": NODES, "now": LIVE}.get(name, DIMENSIONS) for name in BOARDS if name not in ("stream", "runbook", "self")}
# Variables that choose what is compared; they filter by themselves.
CHOOSING = {"compare": ("by", "a", "b")}
# Panels of engines' steps, which have no host.
BY_ENGINE = (
    "Engines",
    "KV cache used",
    "Preemptions",
    "Step time against its base",
    "Work per step",
    "Running and waiting",
    "Stalls charged to each engine",
    "Speculation",
)
OF_THE_STORE = ("At rest", "What would save bytes", "Processor time per chunk", "Where the bytes are")
# Panels that some variables cannot filter: the cost of the whole store, TTFT by engine, streams in flight and findings by release or
# transport.
UNFILTERED = {
    *(("cost", title, variable) for title in OF_THE_STORE for variable in DIMENSIONS),
    *(("now", "Engines", variable) for variable in LIVE),
    *(("nodes", "TTFT at the servers", variable) for variable in ("service", "engine", "host")),
    *(("nodes", title, "host") for title in BY_ENGINE),
    *(("streams", "In flight now", variable) for variable in DIMENSIONS if variable not in LIVE),
    ("chunking", "Changes in chunking", "release"),
    ("chunking", "Changes in chunking", "transport"),
}
# Columns of floats without a unit.
PLAIN = {
    "jitter ratio",
    "tokens per chunk",
    "tokens per chunk, before",
    "now",
    "tokens per chunk before",
    "tokens per chunk now",
    "tokens per second",
    "envelope bytes per text byte",
    "chunks per stream",
    "stalls per 1,000 streams",
}
CHUNKS = re.compile(r"\b(dt_us|chunk_bytes|chunk_tokens|chunk_kind|chunk_hold_64us)\b")
LITERAL = re.compile(r"'(?:[^'\\]|\\.)*'")
INJECTIONS = ("') OR 1=1 --", "x\\' OR ${service:raw}; DROP TABLE stream_revs /*")
DAY_MS = 86_400_000
ALL_PANELS = [pytest.param(name, panel, id=f"{name}: {panel['title']}") for name in BOARDS for panel in panels_in(name)]
ASKING = [pytest.param(name, title, id=f"{name}: {title}") for name in BOARDS for title in panels(name)]


# As files.


def test_committed_files_are_the_built_ones() -> None:
    """Every JSON file equals the output of the code, and there are no others."""
    made = files()
    assert {path.name: path.read_text(encoding="utf-8") == text for path, text in made.items()} == {path.name: True for path in made}
    folder = pathlib.Path(boards.__file__).parents[1]
    assert set(folder.glob("*.json")) == {folder / f"{dashboard(name)['uid']}.json" for name in BOARDS}


def test_all_dashboards_are_tested() -> None:
    """Each dashboard has a module with its panels' expectations and is in the list `BOARDS`."""
    known = {board.__module__.rpartition(".")[2] for board in boards.BOARDS}
    here = {path.stem.removeprefix("test_panels_") for path in pathlib.Path(__file__).parent.glob("test_panels_*.py")}
    assert set(BOARDS) == known == here


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_is_valid_for_grafana(name: str) -> None:
    """Classic schema, unique uid, unique panel ids, and panels that do not overlap."""
    built = dashboard(name)
    assert built["schemaVersion"] == 42 and built["uid"].startswith("legato-") and "legato" in built["tags"]
    assert len({dashboard(other)["uid"] for other in BOARDS}) == len(BOARDS)
    numbers = [panel["id"] for panel in panels_in(name)]
    assert len(set(numbers)) == len(numbers)
    places = [panel["gridPos"] for panel in panels_in(name)]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    areas = {
        (x, y) for place in places for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])
    }
    assert len(areas) == sum(place["w"] * place["h"] for place in places), "two panels overlap"


@pytest.mark.parametrize(("name", "panel"), ALL_PANELS)
def test_a_panel_has_a_description_and_a_unit(name: str, panel: Any) -> None:
    """Every panel has a description and a unit."""
    if panel["type"] == "text":
        assert len(panel["options"]["content"]) >= 20
        return
    defaults = panel["fieldConfig"]["defaults"]
    assert len(panel["description"]) >= 20 and "  " not in panel["description"]
    unit = panel["options"]["yAxis"]["unit"] if panel["type"] == "heatmap" else defaults.get("unit")
    assert unit or panel["type"] == "table"


@pytest.mark.parametrize(("name", "title"), ASKING)
def test_columns_have_units_and_links(asked: Asked, name: str, title: str) -> None:
    """Float columns of tables have a unit, streams are complete ids with a link, and links name existing dashboards."""
    panel = _panel(name, title)
    view = asked.past.view("", 15 * 24, 3600, {"stream": _stalled(asked), "price_kept": "1"})
    answer = asked.panel(name, title, view)
    named: dict[str, list[Any]] = defaultdict(list)
    for override in panel["fieldConfig"]["overrides"]:
        named[override["matcher"]["options"]] += override["properties"]
    united = {column for column, properties in named.items() if any(each["id"] == "unit" for each in properties)}
    if panel["type"] == "table":
        fractions = {name for row in answer.rows for name, cell in zip(answer.columns, row, strict=True) if isinstance(cell, float)}
        assert fractions <= united | PLAIN
    if "stream" in answer.columns:
        (links,) = (each["value"] for each in named["stream"] if each["id"] == "links")
        assert [link["url"] for link in links] == [STREAM_LINK]
        assert all(re.fullmatch("[0-9a-f]{32}", row["stream"]) for row in answer.as_rows())
    linked = [link["url"] for properties in named.values() for each in properties if each["id"] == "links" for link in each["value"]]
    assert {url.split("/")[2] for url in linked} <= {dashboard(other)["uid"] for other in BOARDS}


@pytest.mark.parametrize(("name", "title"), ASKING)
def test_series_ascend(asked: Asked, name: str, title: str) -> None:
    """Time series have an ascending time as first column. Otherwise the plugin returns a table or an error."""
    panel = _panel(name, title)
    target = panel["targets"][0]
    assert (target["format"] == 1) == (panel["type"] in ("stat", "table", "barchart"))
    if target["format"] == 0:
        span = asked.past.view("", 3.3, 60).span
        answer = asked.panel(name, title, View("", span, {"stream": _stalled(asked)}))
        times = [row[0] for row in answer.rows]
        assert answer.columns[0] == "time" and times == sorted(times) and times and all(isinstance(at, int) for at in times)


def _panel(name: str, title: str) -> Any:
    (panel,) = (each for each in panels_in(name) if each["title"] == title)
    return panel


def _stalled(asked: Asked) -> str:
    """The trace id of a stream that was stalled by a preemption."""
    stalled: bytes = next(row["trace_id"] for row in asked.past.stalls if row["cause"] == "kv_pressure")
    return stalled.hex()


# As SQL.


@pytest.mark.parametrize("name", BOARDS)
def test_statements_are_valid_for_the_plugin(name: str) -> None:
    """No macro in a comment, no SETTINGS, no FORMAT, and every variable in the form `:queryparam`, which escapes values."""
    for title, sql in statements(name).items():
        comments = re.findall(r"--[^\n]*|/\*.*?\*/", sql, re.DOTALL)
        assert not any("$__" in comment for comment in comments), title
        assert not re.search(r"\b(SETTINGS|FORMAT)\b", sql, re.IGNORECASE), title
        assert sql.count("${") == len(re.findall(r"\$\{\w+:queryparam\}", sql)), title
        assert "$__conditionalAll" not in sql and "$__timeFrom" not in sql and "$__timeGroup" not in sql, title


@pytest.mark.parametrize("name", BOARDS)
def test_timelines_are_read_for_one_stream_alone(name: str) -> None:
    """Sizes and times of chunks can reveal the content of a stream, so panels over many streams do not read them.

    A name in a literal reads nothing: one panel looks up the size of these columns.
    """
    reading = {title for title, sql in statements(name).items() if CHUNKS.search(LITERAL.sub("", sql))}
    assert reading == ({"Bytes at each vantage", "Gaps"} if name == "stream" else set())


@pytest.mark.parametrize("name", FILTERED)
def test_a_dashboard_has_its_variables(name: str) -> None:
    """A dashboard has all its variables with multiple selection, and each panel's SQL uses them except where they cannot filter."""
    listed = [each for each in dashboard(name)["templating"]["list"] if each["type"] == "query"]
    variables = [each for each in listed if each["name"] not in CHOOSING.get(name, ())]
    assert [each["name"] for each in variables] == list(FILTERED[name])
    assert all(each["multi"] and each["includeAll"] for each in variables)
    assert [each["name"] for each in listed[len(variables) :]] == list(CHOOSING.get(name, ()))
    for title, sql in panels(name).items():
        lacking = {variable for variable in FILTERED[name] if f"${{{variable}:queryparam}}" not in sql}
        assert lacking == {variable for board, panel, variable in UNFILTERED if (board, panel) == (name, title)}, title


# Variables and ranges.


@pytest.mark.parametrize("variable", [*DIMENSIONS, "engine", "host"])
def test_every_variable_filters_every_panel(asked: Asked, variable: str) -> None:
    """A value without any stream empties every panel that the variable filters. Engines of the last minute are in no past."""
    view = asked.past.view("", 15 * 24, 3600, {variable: "no such value"})
    shown = []
    for name in (name for name, columns in FILTERED.items() if variable in columns):
        # What is shown of the present minute depends on how long ago the streams were stored.
        shown += [(name, title) for title in panels(name) if not _of_now(name, title) and not none(asked.panel(name, title, view))]
    assert set(shown) == {(name, title) for name, title, which in UNFILTERED if which == variable and not _of_now(name, title)}


def _of_now(name: str, title: str) -> bool:
    """Whether a panel shows only the last seconds, which the past has not; `test_panels_now` has a separate store."""
    return name == "now" or title == "In flight now"


@pytest.mark.parametrize("name", [name for name in FILTERED if name != "now"])
def test_one_value_shows_less_than_all(asked: Asked, name: str) -> None:
    """A selected service or engine changes the answer of every panel that its variable filters, and of no other panel."""
    chosen = {"engine": "mobile-gpu-0"} if name == "nodes" else {"service": ["mobile"]}
    # The cost panels need data in the previous range and prices; otherwise they are 0 in both views.
    every = asked.past.view("", 2.95 if name == "cost" else 15 * 24, 3600, {"price_kept": "1", "event_bytes": "85"})
    some = View("", every.span, {**every.values, **chosen})
    shown = [title for title in panels(name) if not _of_now(name, title)]
    same = {title for title in shown if asked.panel(name, title, every).rows == asked.panel(name, title, some).rows}
    assert same == {title for board, title, variable in UNFILTERED if board == name and variable in chosen}


def _services(asked: Asked, names: list[str]) -> list[tuple[Any, ...]]:
    view = asked.past.view("", 4, 60, {"service": names})
    sql = panels("streams")["By service, release, model, provider, route, vantage, transport"]
    answer = asked.over_http(sql, view)
    assert answer.status == 200, answer.message
    rows = answer.as_rows()
    return [(row["service"], row["model"], row["n"]) for row in rows]


@pytest.mark.parametrize("value", NASTY)
def test_a_name_is_found_whatever_is_in_it(asked: Asked, value: str) -> None:
    """Names with quotes, SQL, percent signs or markup are found unchanged as service and model, alone and with others."""
    assert _services(asked, [value]) == [(value, value, 2)]
    assert sorted(_services(asked, [value, NASTY[0], NASTY[-1]])) == sorted({(name, name, 2) for name in (value, NASTY[0], NASTY[-1])})
    view = asked.past.view("", 4, 60, {"model": value})
    (row,) = asked.panel("itl", "Server against client", view).as_rows()
    assert (row["model"], row["streams"]) == (value, 2)
    listed = asked.sql(statements("streams")["variable service"], asked.past.view("", 4, 60))
    assert (value,) in listed.rows


@pytest.mark.parametrize("value", [pytest.param(INJECTIONS[0], marks=pytest.mark.long), INJECTIONS[1]])
def test_values_cannot_inject_sql(asked: Asked, value: str) -> None:
    """SQL in all variables and text boxes gives no rows or a client error, and later answers do not change."""
    goodput, calm = panels("streams")["Goodput"], asked.past.view("", 4, 60)
    before = asked.over_http(goodput, calm)
    assert before.status == 200
    for name in (*FILTERED, "stream"):
        names = [each["name"] for each in dashboard(name).get("templating", {}).get("list", ())]
        view = asked.past.view("", 4, 60, {variable: value for variable in names})
        for title, sql in panels(name).items():
            answer = asked.over_http(sql, view)
            fits = answer.status == 200 and (none(answer) or title in (*OF_THE_STORE, "Worst streams of this range"))
            assert fits or 400 <= answer.status < 500, (name, title, answer)
    assert asked.over_http(goodput, calm) == before


def _ranges(now_ms: int) -> dict[str, Range]:
    return {
        "backwards": Range(now_ms, now_ms - DAY_MS),
        "empty": Range(now_ms, now_ms),
        "ten years in minutes": Range(now_ms - 3650 * DAY_MS, now_ms),
        "the future": Range(now_ms + 3650 * DAY_MS, now_ms + 3651 * DAY_MS),
        "beyond what a time can hold": Range(now_ms + 80_000 * DAY_MS, now_ms + 80_001 * DAY_MS),
        "before all time": Range(-10 * 365 * DAY_MS, 0),
    }


_USUAL = ("backwards", "ten years in minutes", "beyond what a time can hold")


@pytest.mark.parametrize("kind", [pytest.param(each, marks=[pytest.mark.long] * (each not in _USUAL)) for each in _ranges(0)])
def test_any_range_is_answered(asked: Asked, kind: str) -> None:
    """Every range gives status 200 or a client error (4xx), never a server error."""
    view = View(kind, _ranges(asked.past.now_ns // 10**6)[kind], {"stream": _stalled(asked)})
    for name in BOARDS:
        for title, sql in panels(name).items():
            answer = asked.try_sql(sql, view)
            assert answer.status == 200 or 400 <= answer.status < 500, (name, title, answer.status, answer.message)
