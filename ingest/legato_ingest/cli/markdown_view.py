"""A page of Markdown in a terminal: headings, paragraphs, lists, and tables that fit its width.

It understands what ``incident`` writes: ATX headings, lines, and pipe tables. The page itself is not changed; piped, it stays Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType

from legato_ingest.cli.layout import Column, FittedTable, Prose

__all__ = ["view"]

_CELL = re.compile(r"(?<!\\)\|")
# An escaped character, which is text, or the mark of code.
_MARK = re.compile(r"\\([\\`\[\]<>&|])|`")
# Figures, times and ids stay in one line; other cells are texts, which may be folded.
_WHOLE = re.compile(r"[\d.,:%≥ –-]*(?:(?:µs|ms|s|min|of)[\d.,% ]*)*|unknown|[0-9a-f]{32}")
_FOLDS = 26


def view(page: str, left_out: Sequence[str] = ()) -> RenderableType:
    """Return the page for a terminal. ``left_out``: the titles of columns that a narrow terminal leaves out, the first one first."""
    return Group(*_blocks(page.rstrip("\n").split("\n"), left_out))


def _blocks(lines: Sequence[str], left_out: Sequence[str]) -> Iterator[RenderableType]:
    table: list[list[str]] = []
    for line in lines:
        if line.startswith("|"):
            table.append(_cells(line))
            continue
        if table:
            yield _table(table, left_out)
            table = []
        if line.startswith("#"):
            yield Prose(line.lstrip("# "), style="bold")
        else:
            yield Prose(line)
    if table:
        yield _table(table, left_out)


def _cells(line: str) -> list[str]:
    return [_MARK.sub(lambda mark: mark[1] or "", cell.strip()) for cell in _CELL.split(line)[1:-1]]


def _table(lines: Sequence[Sequence[str]], left_out: Sequence[str]) -> FittedTable:
    titles, rows = lines[0], lines[2:]
    columns = []
    for place, title in enumerate(titles):
        is_whole = all(_WHOLE.fullmatch(row[place]) for row in rows)
        drop = len(left_out) - left_out.index(title) if title in left_out else 0
        is_figure = is_whole and all(len(row[place]) < 19 for row in rows)
        columns.append(Column(title, drop, 0 if is_whole else _FOLDS, is_figure))
    table = FittedTable(columns)
    for row in rows:
        table.add_row(*row)
    return table
