"""Runbook: docs/runbook.md as text panels, so that an alert's link reaches it in the same Grafana."""

from __future__ import annotations

import pathlib
import re

from dashboards.panels import Kit, note

__all__ = ["board", "panel_of"]

_FILE = pathlib.Path(__file__).parents[2] / "docs" / "runbook.md"
_WIDTH, _CHARACTERS_PER_LINE, _LINES_PER_UNIT = 12, 85, 1.7


def _sections() -> list[tuple[str, str]]:
    """Return the sections of the runbook: heading and Markdown."""
    introduction, *parts = re.split(r"^### ", _FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    paragraphs = introduction.split("\n\n")[1]
    named = (part.partition("\n") for part in parts)
    return [("How to use it", paragraphs), *((title, re.sub(r"^## .*$", "", body, flags=re.MULTILINE).strip()) for title, _, body in named)]


def panel_of(word: str) -> int:
    """Return the number of the panel with this name (of a cause or of an alert rule) in its heading. Raises ``ValueError``."""
    for number, (title, _) in enumerate(_sections(), 1):
        if f"`{word}`" in title:
            return number
    raise ValueError(f"docs/runbook.md has no section with `{word}` in its heading")


def board() -> Kit:
    """The dashboard."""
    kit = Kit(
        "legato-runbook",
        "Legato · Runbook",
        "What to check and what to change, for each alert and for each cause of a stall.",
        variables={},
        empty="",
        annotated=False,
        refresh="",
    )
    sections = _sections()
    # Two panels beside each other have the height of the longer one, so that no panel overlaps another.
    for first in range(0, len(sections), 2):
        pair = sections[first : first + 2]
        height = max(_height(text) for _, text in pair)
        kit.add(*(note(title.replace("`", ""), text, width=_WIDTH, height=height) for title, text in pair))
    return kit


def _height(text: str) -> int:
    lines = sum(1 + len(line) // _CHARACTERS_PER_LINE for line in text.splitlines())
    return max(4, 2 + round(lines / _LINES_PER_UNIT))
