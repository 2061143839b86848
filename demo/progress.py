"""Progress display while streams run: a live line in a terminal, otherwise one line every 10 s.

It displays the JSON lines that the clients process prints.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

__all__ = ["show"]

_PLAIN_EVERY_S = 10.0


def show(lines: Iterable[str], console: Console, duration_s: float) -> None:
    """Display progress until the lines end. ``duration_s``: expected duration of the replay."""
    states = (json.loads(line) for line in lines)
    if console.is_terminal:
        _show_live(states, console, duration_s)
    else:
        _show_plain(states, console)


def _show_live(states: Iterator[dict[str, Any]], console: Console, duration_s: float) -> None:
    columns = TextColumn("[bold]{task.description}"), BarColumn(None), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn()
    bar = Progress(*columns, console=console, expand=True)
    task = bar.add_task("replaying", total=duration_s)
    started = time.monotonic()
    with Live(bar, console=console, refresh_per_second=8) as live:
        for state in states:
            bar.update(task, completed=min(duration_s, time.monotonic() - started), description=f"replaying {state['recording']}")
            live.update(Group(bar, _line(state)))
        bar.update(task, completed=duration_s)


def _show_plain(states: Iterator[dict[str, Any]], console: Console) -> None:
    printed, last = -_PLAIN_EVERY_S, None
    for last in states:
        if time.monotonic() - printed >= _PLAIN_EVERY_S:
            printed = time.monotonic()
            console.print(_line(last), soft_wrap=True)
    if last is not None:
        console.print(_line(last), soft_wrap=True)


def _line(state: dict[str, Any]) -> Text:
    text = Text.assemble(
        (f"{state['running']:>3}", "bold"),
        " streams running · ",
        (f"{state['ended']}", "bold"),
        f" of {state['streams']} ended · ",
        (f"{state['chunks']:,}", "bold"),
        " chunks · ",
        (f"{state['stalls']}", "bold red" if state["stalls"] else "bold"),
        f" stalls of 250 ms or more · longest {state['gap_max_s']:.2f} s",
    )
    if state["failed"]:
        text.append(f" · {state['failed']} failed", "bold red")
    return text
