"""The dashboard `runbook`: every cause and every alert rule has a section, and each rule links to its own."""

from __future__ import annotations

import re

import pytest

from dashboards.alerts.rules import RULES, provisioned
from dashboards.boards.runbook import panel_of
from helpers.dashboards.panels import dashboard, panels_in
from legato_ingest.causes import CAUSES, HEALTHY


@pytest.mark.parametrize(
    "word", [cause.name for cause in CAUSES if cause.is_part and cause.name != HEALTHY] + [rule.name for rule in RULES]
)
def test_every_cause_and_rule_has_a_section(word: str) -> None:
    """The heading names it, and the text says what to check."""
    (panel,) = (each for each in panels_in("runbook") if each["id"] == panel_of(word))
    assert word in panel["title"] and len(panel["options"]["content"]) > 100


def test_each_rule_links_to_its_section() -> None:
    """By an absolute URL of the Grafana that evaluates the rule."""
    for rule, built in zip(RULES, provisioned()["groups"][0]["rules"], strict=True):
        url = built["annotations"]["runbook_url"]
        assert url.startswith("{{ reReplaceAll") and url.endswith(
            f"{dashboard('runbook')['uid']}/runbook?viewPanel=panel-{panel_of(rule.name)}"
        )


def test_an_unknown_word_has_no_section() -> None:
    """A new rule or cause without a section is an error of the build."""
    with pytest.raises(ValueError, match=re.escape("no section with `nothing`")):
        panel_of("nothing")
