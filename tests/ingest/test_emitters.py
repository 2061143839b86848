"""The table of foreign emitters is complete: each family has its converter and its row in docs/reference.md."""

from __future__ import annotations

from helpers.repo.repository import ROOT
from legato_ingest.emitters import EMITTERS
from legato_ingest.otlp.emitters import FAMILIES


def test_each_family_has_a_row() -> None:
    """And each row a family."""
    assert {each.name for each in EMITTERS} == set(FAMILIES) - {"engine", "native"} | {"otel-genai"}


def test_the_reference_has_the_table() -> None:
    """What is known from each, as `legato doctor --emitters` says it."""
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    for each in EMITTERS:
        assert f"| {each.label} | `{each.name}` | {each.timing} | {each.missing} | {each.mend} |" in text, each.name
