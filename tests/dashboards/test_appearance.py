"""How panels look in Grafana: units, colours with words, texts for missing data, rows, and the names that Grafana makes of columns.

The facts about Grafana are from its source, versions 11.6 to 13: `valueFormats/categories.ts` (ids of units), `fieldState.ts` and
`calculateHeatmap/heatmap.ts` (names of series and buckets), `PanelDataErrorView.tsx` (texts for missing data).
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from dashboards.scales import SCALES
from helpers.dashboards.panels import BOARDS, dashboard, panels_in

# The ids that panels use, of those that Grafana has. It shows any other text after the number as if it were a unit.
UNITS = {"none", "short", "percentunit", "s", "decbytes", "currencyUSD", "hertz", "watt", "string"}
# The meaning of each figure with colours; all other figures have none, because no value of theirs is good or bad in general.
MEANINGS = {
    ("streams", "Goodput"): "goodput",
    ("streams", "p99 of per-stream p99 gap"): "gap",
    ("streams", "p99 of the longest gap"): "gap",
    ("streams", "Jitter ratio, median"): "jitter",
    ("streams", "TTFT p95"): "first output",
    ("streams", "Goodput by service and vantage"): "goodput",
    ("streams", "Error budget left"): "budget",
    ("streams", "Longest gaps"): "gap",
    ("streams", "By service, release, model, provider, route, vantage, transport"): "goodput",
    ("now", "Longest open gap"): "gap",
    ("itl", "Per-stream p99 gap over time"): "gap",
    ("compare", "Per-stream p99 gap over time, A and B"): "gap",
    ("attribution", "Cause unknown"): "evidence missing",
    ("attribution", "Side known, cause unknown"): "evidence missing",
    ("nodes", "KV cache used"): "KV cache",
    ("nodes", "Preemptions"): "preemptions",
    ("nodes", "TTFT at the servers"): "first output",
    ("nodes", "KV cache used, scraped"): "KV cache",
    ("nodes", "First token by phase, scraped"): "first output",
    ("nodes", "GPU throttling"): "throttling",
    ("nodes", "Host CPU"): "CPU",
    ("chunking", "Contract met, stream froze"): "bad streams",
    ("chunking", "By provider and week"): "goodput",
    ("stream", "Gaps"): "gap",
    ("self", "Rejected"): "rejections",
    ("self", "Collector queues"): "queue",
}
# From the first value on, a figure is not good (scales on which high values are good: it is good).
TURNS = {
    "goodput": ("high", 0.99),
    "budget": ("high", 0.25),
    "gap": ("low", 0.25),
    "first output": ("low", 1.0),
    "jitter": ("low", 5.0),
    "bad streams": ("low", 0.01),
    "evidence missing": ("low", 0.05),
    "KV cache": ("low", 0.9),
    "preemptions": ("low", 1e-9),
    "throttling": ("low", 0.01),
    "CPU": ("low", 0.8),
    "queue": ("low", 0.5),
    "rejections": ("low", 1e-9),
}
PANELS = [(name, panel) for name in BOARDS for panel in panels_in(name) if panel["type"] != "text"]
QUERIED = [pytest.param(name, panel, id=f"{name}: {panel['title']}") for name, panel in PANELS]


def _properties(panel: Any, identifier: str) -> dict[str, Any]:
    """The values of a property, by the column that an override sets it for; those of the panel for the name ``""``."""
    defaults, overrides = panel["fieldConfig"]["defaults"], panel["fieldConfig"]["overrides"]
    pairs = [(each["matcher"]["options"], own["value"]) for each in overrides for own in each["properties"] if own["id"] == identifier]
    return dict([("", defaults[identifier]), *pairs] if identifier in defaults else pairs)


def _pairs(thresholds: Any) -> list[tuple[float | None, str]]:
    return [(step["value"], step["color"]) for step in thresholds["steps"]]


# Units.


@pytest.mark.parametrize(("name", "panel"), QUERIED)
def test_units_are_grafanas(name: str, panel: Any) -> None:
    """Every unit of a panel, a column, an axis or a cell is an id that Grafana has."""
    options = panel["options"]
    units = {*_properties(panel, "unit").values(), *(options.get(part, {}).get("unit") for part in ("yAxis", "cellValues"))} - {None}
    assert units <= UNITS


def test_a_figure_keeps_its_unit() -> None:
    """No override for counts matches the main figure of a panel that is not a count."""
    for name, panel in PANELS:
        if panel["type"] == "stat" and panel["fieldConfig"]["defaults"]["unit"] != "short":
            figure = re.search(r'AS (\w+|"[^"]+")[,\s]', panel["targets"][0]["rawSql"].split("FROM\n")[0])
            others = [pattern.strip("/") for pattern in _properties(panel, "unit") if pattern.startswith("/")]
            assert figure and not any(re.search(pattern, figure.group(1).strip('"')) for pattern in others), (name, panel["title"])


def test_a_heatmap_shows_units_everywhere() -> None:
    """Grafana formats the bounds on the axis and in the tooltip only if a series' name is a number, and counts by the cells' unit.

    A series has the name of its label alone if the value's column is named `Value`, and otherwise both names.
    """
    (panel,) = (panel for _, panel in PANELS if panel["type"] == "heatmap")
    sql, options = panel["targets"][0]["rawSql"], panel["options"]
    selected = sql.rpartition("SELECT\n")[2].partition("\nFROM")[0]
    assert re.findall(r'\btime,|\bAS ("?\w+"?)', selected) == ["", "le", '"Value"']
    assert options["yAxis"]["unit"] == "s" and options["cellValues"] == {"unit": "short", "decimals": 0}
    assert options["rowsFrame"] == {"layout": "le", "value": "gaps"} and options["legend"]["show"] and options["tooltip"]["showColorScale"]


def test_the_distribution_is_a_histogram() -> None:
    """The per-stream p99 gaps are bars over buckets, not quantiles."""
    (panel,) = (each for each in panels_in("itl") if each["title"] == "Distribution of per-stream p99 gaps")
    assert (
        panel["type"] == "barchart" and panel["options"]["xField"] == "p99 gap up to" and "gap_p99_buckets" in panel["targets"][0]["rawSql"]
    )


# Colours and words.


def test_a_scale_has_one_meaning() -> None:
    """Green is at the good end, red at the bad end, each step has a word, and the limit between them is the expected one."""
    assert {name: scale.better for name, scale in SCALES.items()} == {name: better for name, (better, _) in TURNS.items()}
    for name, scale in SCALES.items():
        steps = scale.steps if scale.better == "low" else scale.steps[::-1]
        assert (steps[0].color, steps[-1].color) == ("green", "red") and len({step.word for step in steps}) == len(steps) >= 2
        bounds = [step.since for step in scale.steps if step.since is not None]
        assert len(bounds) == len(steps) - 1 and scale.steps[0].since is None and bounds == sorted(bounds)
        assert (bounds[0] if scale.better == "low" else bounds[-1]) == TURNS[name][1]


@pytest.mark.parametrize(("name", "panel"), QUERIED)
def test_a_colour_has_its_meaning_and_a_word(name: str, panel: Any) -> None:
    """Thresholds are those of the panel's meaning, and a word stands beside each colour: in a column, or in the description of a curve."""
    meaning = MEANINGS.get((name, panel["title"]))
    found = [pairs for each in _properties(panel, "thresholds").values() if len(pairs := _pairs(each)) > 1]
    if meaning is None:
        assert not found
        return
    steps, words = SCALES[meaning].steps, {step.word for step in SCALES[meaning].steps}
    assert found == [[(step.since, step.color) for step in steps]]
    if panel["type"] == "timeseries":
        assert all(step.word in panel["description"] for step in steps if step.since is not None)
        return
    ((mapping,),) = _properties(panel, "mappings").values() if panel["type"] == "stat" else [_properties(panel, "mappings")["state"]]
    assert {word: each["color"] for word, each in mapping["options"].items()} == {step.word: step.color for step in steps}
    sql = panel["targets"][0]["rawSql"]
    assert re.search(r"\bAS state\b", sql) and all(f"'{word}'" in sql for word in words)


def test_every_meaning_is_used() -> None:
    """No scale and no panel in the list is left over."""
    titles = {(name, panel["title"]) for name in BOARDS for panel in panels_in(name)}
    assert set(MEANINGS.values()) == set(SCALES) == set(TURNS) and MEANINGS.keys() <= titles


# Missing data.


@pytest.mark.parametrize(("name", "panel"), QUERIED)
def test_missing_data_is_explained(name: str, panel: Any) -> None:
    """An empty panel says why it is empty. A cell without a value is a dash, not this sentence."""
    texts = _properties(panel, "noValue")
    reason = texts.pop("")
    assert re.match(r"(No|Nothing|In no|There is nothing|legato serve recorded no|no|nothing|the store is empty)\b", reason)
    assert not re.search(r"(?i)\bno (data|value)s?\b\.?$", reason)
    assert 8 <= len(reason) <= 30 if panel["type"] == "stat" else len(reason) >= 30
    assert texts == ({"/.*/": "–"} if panel["type"] == "table" else {})
    if panel["type"] == "table":
        assert panel["fieldConfig"]["overrides"][0]["matcher"] == {"id": "byRegexp", "options": "/.*/"}


# Layout.


def test_streams_begins_with_the_state_of_the_service() -> None:
    """The first row has traffic, streams in flight, goodput, and stalled time by cause."""
    first = [panel["title"] for panel in panels_in("streams") if panel["gridPos"]["y"] == 0]
    assert first == ["Traffic", "In flight now", "Goodput", "Stalled time by cause"]


def test_nodes_begins_with_engines_and_folds_the_rest() -> None:
    """The row of engines is open, with the table of engines first. All other rows are folded, so their queries wait until one is opened."""
    top = dashboard("nodes")["panels"]
    rows = [panel for panel in top if panel["type"] == "row"]
    assert top[0]["title"] == "Engines" and top[1]["title"] == "Engines" and top[1]["type"] == "table"
    assert [(row["title"], row["collapsed"]) for row in rows] == [
        ("Engines", False),
        ("First tokens, prefix cache and speculation", True),
        ("Scraped engine metrics", True),
        ("GPUs", True),
        ("Hosts", True),
    ]
    # Grafana ignores panels in a row that is not collapsed.
    assert all(bool(row["panels"]) is row["collapsed"] for row in rows)


def test_a_stream_is_chosen_from_a_list() -> None:
    """The board of one stream begins with a list of streams that does not depend on the chosen stream."""
    first = [panel for panel in panels_in("stream") if panel["gridPos"]["y"] == 0]
    assert [panel["title"] for panel in first] == ["How to read this", "Worst streams of this range"]
    assert "${stream:queryparam}" not in first[1]["targets"][0]["rawSql"]
