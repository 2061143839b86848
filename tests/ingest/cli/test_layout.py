"""Tests of the layout of the terminal's views: tables that fit, and prose that keeps numbers whole."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, Group, RenderableType
from rich.text import Text

from legato_ingest.cli.layout import Column, FittedTable, Prose, console
from legato_ingest.cli.markdown_view import view

PAGE = """# Title

A line of 400 ms.

| service | bad | since (UTC) | event |
|---|---|---|---|
| `shop` \\| x | 594 of 816 | 2026-11-23 05:16:00 | 1,016 prompt tokens prefilled: chatcmpl-past-429-kv-p-006 |

- 05:13: new release `1.5.0`
"""


def lines(view: RenderableType, width: int) -> list[str]:
    """The printed lines, without blanks at their ends."""
    out = io.StringIO()
    Console(width=width, file=out, highlight=False).print(Group(view), markup=False)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def table() -> FittedTable:
    """A name that folds, two figures, and a figure that is left out first."""
    made = FittedTable([Column("name", folds=6), Column("worst", right=True), Column("n", drop=1, right=True), Column("rest", drop=2)])
    made.add_row("a name of words", "12.69 s", Text("1,234"), "12 complete")
    return made


def test_a_wide_table_has_every_column_and_no_fold() -> None:
    """Figures are aligned to the right."""
    assert lines(table(), 60) == ["name               worst      n  rest", "a name of words  12.69 s  1,234  12 complete"]


def test_a_narrow_table_leaves_out_columns_then_folds_texts() -> None:
    """The column with the highest number is left out first; one without a number never."""
    assert lines(table(), 34) == ["name               worst      n", "a name of words  12.69 s  1,234"]
    assert lines(table(), 25) == ["name         worst      n", "a name of  12.69 s  1,234", "words"]
    assert lines(table(), 16) == ["name       worst", "a name   12.69 s", "of", "words"]
    assert lines(table(), 13) == ["name    worst", "a     12.69 s", "name", "of", "word", "s"]


def test_prose_keeps_a_number_with_its_unit() -> None:
    """Also minutes with seconds; other words are wrapped as usual, and styles stay."""
    text = "after 2 min 5 s of 400 ms (100 %)"
    for width in range(9, 40):
        shown = lines(Prose(text), width)
        assert " ".join(shown) == text
        assert any("2 min 5 s" in line for line in shown) and any("(100 %)" in line for line in shown), shown
    assert lines(Prose.assemble(("loud", "bold"), " 400 ms"), 8) == ["loud", "400 ms"]


def test_a_page_of_markdown_in_a_terminal() -> None:
    """Headings, lines and lists stay; a table is fitted, and columns are left out in the given order."""
    wide = lines(view(PAGE, ("since (UTC)",)), 120)
    assert wide[0] == "Title" and "A line of 400 ms." in wide and wide[-1] == "- 05:13: new release `1.5.0`"
    assert "shop | x  594 of 816  2026-11-23 05:16:00  1,016 prompt tokens prefilled: chatcmpl-past-429-kv-p-006" in wide
    narrow = lines(view(PAGE, ("since (UTC)",)), 60)
    assert max(map(len, narrow)) <= 60 and not any("since" in line for line in narrow) and any("594 of 816" in line for line in narrow)


@pytest.mark.parametrize(("columns", "width"), [("", 120), ("80", 80), ("0", 120), ("x", 120)])
def test_the_width_without_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: str, width: int) -> None:
    """COLUMNS, or 120."""
    monkeypatch.setenv("COLUMNS", columns)
    assert console().width == width and console().color_system is None


def test_no_color_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR leaves out all styles, not only colours."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert console().is_terminal and console().color_system is not None
    monkeypatch.setenv("NO_COLOR", "1")
    assert console().is_terminal and console().color_system is None
