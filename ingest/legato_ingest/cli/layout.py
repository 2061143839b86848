"""The output of the commands: the console, lines, JSON, tables that fit the width, and prose that keeps numbers whole.

All output of the commands goes through this module, and no text of it can steer a terminal: what is not seen is escaped, whatever a view
forgot. A table that is too wide leaves out columns, the least important first, and folds texts; a number is never cut or folded. Where even
that does not fit, as on a phone, each cell is a line. Without a terminal, or with NO_COLOR, the output has no escape codes. This module
knows no command and no figure.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from legato_ingest.visible import visible_lines

__all__ = ["Column", "FittedTable", "Prose", "console", "print_json", "print_line"]

_WIDTH_WITHOUT_TERMINAL = 120
_TEXT_MIN = 4
# One cell wide, and no white space for Rich; it is replaced again after wrapping.
_GLUE = "\ue000"
_UNITS = "µs|ms|s|min|h|d|days?|hours?|minutes?|%|B|kB|MB|GiB"
_VALUE = re.compile(rf"(?<=\d) (?=(?:{_UNITS})(?!\w))|(?<= min) (?=\d+ s(?!\w))")


def console() -> Console:
    """Return the console of standard output. Without a terminal it is as wide as COLUMNS says, or 120 columns."""
    no_color = bool(os.environ.get("NO_COLOR"))
    made = _VisibleConsole(highlight=False, markup=False, emoji=False, color_system=None if no_color else "auto")
    if made.is_terminal:
        return made
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) else _WIDTH_WITHOUT_TERMINAL
    return _VisibleConsole(width=width, highlight=False, markup=False, emoji=False, color_system=None)


def print_line(text: str, *, error: bool = False) -> None:
    """Print a text as it is, on standard output or standard error; a page may have several lines."""
    typer.echo(visible_lines(text), err=error)


def print_json(data: Any) -> None:
    """Print data as JSON, in one line, with an escape for each character that is not printable ASCII."""
    typer.echo(json.dumps(data))


class _VisibleConsole(Console):
    """A console that escapes what is not seen after the layout, also in texts that a view passed on as they were received."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the segments; those that move the cursor are Rich's."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible_lines(segment.text), segment.style)


class Prose(Text):
    """A text that is wrapped between words, but not between a number and its unit. What is not seen is escaped.

    Print it inside of another renderable: ``Console.print`` joins bare texts to a ``Text``.
    """

    def __init__(self, text: str = "", *more: Any, **options: Any) -> None:
        super().__init__(visible_lines(text), *more, **options)

    def append(self, text: Text | str, style: Any = None) -> Text:
        """Append a text; see ``Text.append``."""
        return super().append(visible_lines(text) if isinstance(text, str) else text, style)

    def wrap(self, console: Console, width: int, **options: Any) -> Any:
        """Return the lines; see ``Text.wrap``."""
        glued = Text.copy(self)
        glued.plain = _VALUE.sub(_GLUE, self.plain)
        lines = Text.wrap(glued, console, width, **options)
        for line in lines:
            line.plain = line.plain.replace(_GLUE, " ")
        return lines


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, whether it is aligned to the right, and what happens in a narrow terminal.

    ``folds``: a text that may be folded to this width; 0: a number or a short name, which stays in one line. ``drop``: columns with a
    higher number are left out first; 0: never left out.
    """

    title: str
    drop: int = 0
    folds: int = 0
    right: bool = False


@dataclass(slots=True)
class FittedTable:
    """A table that is fitted when it is printed. A cell is a string or a Rich text; it may have several lines."""

    columns: Sequence[Column]
    title: str = ""
    lines: bool = False
    caption: str = ""
    rows: list[Sequence[str | Text]] = field(default_factory=list)

    def add_row(self, *cells: str | Text) -> None:
        """Add a row with one cell for each column."""
        assert len(cells) == len(self.columns)
        self.rows.append([visible_lines(cell) if isinstance(cell, str) else cell for cell in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table with the columns that fit, or its cells one below the other if too few do."""
        chosen, widths = self._fit(options.max_width)
        if sum(widths) + self._between(len(chosen)) > options.max_width:
            yield from self._lines()
            return
        table = Table(
            title=Text(self.title, style="bold") if self.title else None,
            caption=Text(self.caption) if self.caption else None,
            title_justify="left",
            caption_justify="left",
            pad_edge=False,
            show_lines=self.lines,
        )
        if not self.lines:
            table.box = None
        for place, width in zip(chosen, widths, strict=True):
            column = self.columns[place]
            table.add_column(
                Text(column.title), justify="right" if column.right else "left", width=width, no_wrap=not column.folds, overflow="fold"
            )
        for cells in self.rows:
            table.add_row(*[_cell(cells[place]) for place in chosen])
        yield table

    def _lines(self) -> Iterator[RenderableType]:
        """Yield each cell as a line with its title, and an empty line after each row."""
        if self.title:
            yield Text(self.title, style="bold")
        for cells in self.rows:
            for column, cell in zip(self.columns, cells, strict=True):
                if _cell(cell).plain.strip():
                    yield _cell(cell) if not column.title else Prose(f"{' '.join(column.title.split())}: ").append_text(_cell(cell))
            yield Text("")
        if self.caption:
            yield Prose(self.caption)

    def _fit(self, width: int) -> tuple[list[int], list[int]]:
        """The places of the columns that are shown, and the width of each."""
        natural = [max(map(_width, (column.title, *(cells[place] for cells in self.rows)))) for place, column in enumerate(self.columns)]
        least = [
            min(wide, max(column.folds, _width(column.title))) if column.folds else wide
            for wide, column in zip(natural, self.columns, strict=True)
        ]
        chosen = list(range(len(self.columns)))
        for place in sorted(chosen, key=lambda place: -self.columns[place].drop):
            if sum(least[each] for each in chosen) + self._between(len(chosen)) <= width or not self.columns[place].drop:
                break
            chosen.remove(place)
        widths = {place: least[place] for place in chosen}
        room = width - self._between(len(chosen)) - sum(widths.values())
        texts = [place for place in chosen if self.columns[place].folds]
        for place in sorted(texts, key=lambda place: natural[place] - least[place]):
            more = min(max(room, 0), natural[place] - least[place])
            widths[place] += more
            room -= more
        # Without room even for the least widths, the widest texts are folded further, titles last; numbers stay.
        for floor in ({place: _width(self.columns[place].title) for place in texts}, dict.fromkeys(texts, _TEXT_MIN)):
            while room < 0 and (wider := [place for place in texts if widths[place] > floor[place]]):
                widths[max(wider, key=widths.__getitem__)] -= 1
                room += 1
        return chosen, [widths[place] for place in chosen]

    def _between(self, columns: int) -> int:
        """The cells that are not content: two blanks, or a line with a blank on each side."""
        return 3 * (columns - 1) + 2 if self.lines else 2 * (columns - 1)


def _cell(cell: str | Text) -> Text:
    return Prose(cell) if isinstance(cell, str) else cell


def _width(cell: str | Text) -> int:
    return max(map(cell_len, (cell if isinstance(cell, str) else cell.plain).split("\n")))
