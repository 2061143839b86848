"""The queries in docs/queries.md: each runs through the read endpoint, and all but those about this moment or yesterday return rows."""

from __future__ import annotations

import re

import pytest

from helpers.dashboards.panels import Asked
from helpers.repo.repository import ROOT

TEXT = (ROOT / "docs" / "queries.md").read_text(encoding="utf-8")
SECTIONS = dict(part.split("\n", 1) for part in TEXT.split("\n## ")[1:])
RECIPES = {title: match[1] for title, section in SECTIONS.items() if (match := re.search(r"```sql\n(.+?)```", section, re.DOTALL))}
# They show the last seconds, and a day of which the past has streams only after midnight (see `test_recipe_of_yesterday`).
OF_OTHER_TIMES = {"Streams in flight now", "Streams that stand still now", "Stalled time by cause, yesterday"}


def test_there_are_thirteen() -> None:
    """Each heading has one query."""
    assert len(RECIPES) == 13 == len(SECTIONS) and TEXT.count("```sql") == 13 and set(RECIPES) >= OF_OTHER_TIMES


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_runs(asked: Asked, title: str) -> None:
    """Over the past that the dashboards are tested with."""
    answer = asked.over_http(RECIPES[title], asked.past.view("", 24, 3600))
    assert answer.status == 200, answer.message
    assert answer.rows or title in OF_OTHER_TIMES


def test_the_engine_of_a_client_is_that_of_its_server(asked: Asked) -> None:
    """The recipe names the engine that the server row of the same trace has."""
    answer = asked.over_http(RECIPES["The engine that served a stream"], asked.past.view("", 24, 3600))
    servers = {row["trace_id"].hex(): row["engine_id"] for row in asked.past.streams if row["vantage"] == "server" and row["engine_id"]}
    named = {str(row[0]): str(row[3]) for row in answer.rows}
    assert any(named.values()) and all(engine == servers.get(trace, "") for trace, engine in named.items())
