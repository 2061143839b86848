"""What the dashboards ask of Grafana and the web page cannot draw: nothing. And each cause has one colour everywhere.

An option counts as drawn if the scripts of the page read its name, or if its value is what the page draws in any case. The values that
select a drawing (units, calculations, matchers, overrides) must be named by the scripts, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.repo.repository import ROOT
from helpers.servers.web import BOARDS
from legato_ingest.causes import BY_NAME

STATIC = ROOT / "ingest" / "legato_ingest" / "web" / "static"
SCRIPTS = "\n".join(path.read_text(encoding="utf-8") for path in [*STATIC.glob("panels/*.js"), *STATIC.glob("*.js")])
# The page draws these values always, and no other.
ALWAYS: dict[str, dict[str, Any]] = {
    "barchart": {
        "gradientMode": "none", "barRadius": 0, "fullHighlight": False, "displayMode": "list", "placement": "bottom",
        "orientation": "vertical", "showValue": "never", "xTickLabelMaxLength": 0, "xTickLabelRotation": 0, "xTickLabelSpacing": 100,
    },
    # A cell that is hovered shows its number and its colour beside the scale; `auto` shows no numbers in cells as small as these.
    "heatmap": {"reverse": False, "selectionMode": "x", "showValue": "auto", "showColorScale": True, "yHistogram": True},
    "stat": {
        "graphMode": "none", "justifyMode": "auto", "orientation": "horizontal", "percentChangeColorMode": "standard",
        "showPercentChange": False, "wideLayout": True,
    },
    "table": {"inspect": False, "cellHeight": "sm", "countRows": False, "showTypeIcons": False},
    "timeseries": {"displayMode": "list", "placement": "bottom"},
}  # fmt: skip
# Values that the scripts treat as the only alternative to the one that they name.
ALTERNATIVES = ("absolute", "value_and_name")
CHOICES = ("unit", "calcs", "mode", "drawStyle", "axisPlacement", "colorMode", "textMode", "scheme", "layout", "stacking", "sort")


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels, also those of closed rows."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels") or ()


def options(content: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each option that has no options below it."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from options(value, key)
    elif isinstance(content, list):
        for value in content:
            yield from options(value, name)
    else:
        yield name, content


def named(word: str) -> bool:
    """Whether the scripts have this word."""
    return re.search(rf"\b{re.escape(word)}\b", SCRIPTS) is not None


def overrides(panel: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The overrides of fields."""
    yield from (panel.get("fieldConfig") or {}).get("overrides") or ()


def undrawn(panel: dict[str, Any]) -> Iterator[str]:
    """Yield what the panel asks for and the page does not draw."""
    kind, config = panel["type"], panel.get("fieldConfig") or {}
    for name, value in options({"options": panel.get("options"), "defaults": config.get("defaults")}):
        if not named(name) and ALWAYS.get(kind, {}).get(name, ...) != value:
            yield f"{name} = {value}"
        if name in CHOICES and isinstance(value, str) and not named(value) and value not in ALTERNATIVES:
            yield f"{name} = {value}: unknown value"
    for override in overrides(panel):
        wanted = [override["matcher"]["id"], *(part for each in override["properties"] for part in each["id"].split("."))]
        yield from (f"override {word}" for word in wanted if not named(word))
    for name in ("transformations", "repeat", "timeShift", "timeFrom", "libraryPanel"):
        if panel.get(name):
            yield name


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board["uid"])
def test_the_page_draws_all_that_grafana_would(board: dict[str, Any]) -> None:
    """The list of what Grafana shows and the page cannot is empty."""
    missing = {panel.get("title"): found for panel in panels(board) if panel["type"] != "row" and (found := sorted(set(undrawn(panel))))}
    assert missing == {}
    kinds = {variable["type"] for variable in (board.get("templating") or {}).get("list") or ()}
    assert kinds <= {"query", "textbox"}, kinds


def test_a_cause_has_one_name_and_colour() -> None:
    """The page's table of causes equals the table in Python, from which Grafana's colours are made."""
    text = (STATIC / "causes.js").read_text(encoding="utf-8")
    rows = re.findall(r"^  (\w+): \{ label: ['\"](.+?)['\"], color: '(#[0-9A-F]{6})', meaning: ['\"](.+?)['\"] \},$", text, re.MULTILINE)
    assert {name: tuple(row) for name, *row in rows} == {name: (cause.label, cause.color, cause.meaning) for name, cause in BY_NAME.items()}
