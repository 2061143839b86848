"""`legato slo`: the burn rates that the alert rules see.

It runs the statements of the alert rules (``dashboards/alerts/*.sql``) and prints their results. It computes no burn rate itself.
"""

from __future__ import annotations

import pathlib
import re
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from legato_ingest.cli.client import Reader
from legato_ingest.cli.format import clean, count
from legato_ingest.errors import LegatoError

__all__ = ["RULES", "as_json", "fetch", "render"]

RULES = {"itl_burn": "ITL goodput", "ttft_burn": "first output", "reader_burn": "end users' own stalls"}
_OBJECTIVE = re.compile(r"^    [\d.]+ AS objective,$", re.MULTILINE)
Row = dict[str, Any]


def fetch(reader: Reader, folder: pathlib.Path, objective: float) -> list[Row]:
    """Return one row per rule, service, vantage and severity: firing rules first, pages before tickets. Raises ``LegatoError``."""
    rows: list[Row] = []
    for name in RULES:
        path = folder / "alerts" / f"{name}.sql"
        if not path.is_file():
            raise LegatoError(f"{path} does not exist: set LEGATO_DASHBOARDS_DIR to the repository's dashboards folder")
        sql, places = _OBJECTIVE.subn(f"    {objective:.6f} AS objective,", path.read_text(encoding="utf-8"))
        if places != 1:
            raise LegatoError(f"{path} sets the objective in {places} lines, expected 1: rebuild it with `python -m dashboards`")
        rows += [{"rule": name, **row, "firing": bool(row["firing"])} for row in reader.rows(sql)]
    names = ("rule", "service", "vantage")
    return sorted(rows, key=lambda row: (not row["firing"], row["severity"] != "page", -row["burn_rate"], *(row[name] for name in names)))


def as_json(rows: list[Row]) -> list[Row]:
    """Return the rows unchanged."""
    return rows


def render(rows: list[Row], objective: float) -> RenderableType:
    """Return the rows for a terminal."""
    if not rows:
        return Text("no stream ended in the last three days: no budget burns")
    head = Text(f"{100 * objective:g} % of streams should be good; {100 * (1 - objective):.4g} % may be bad")
    table = Table("budget", "service · vantage", "severity", box=None, pad_edge=False)
    for name in ("burn rate", "fires at", "bad", "streams", "end users"):
        table.add_column(name, justify="right")
    table.add_column("window")
    table.add_column("state")
    burning = [row for row in rows if row["bad"]]
    messages = []
    for row in clean(burning):
        where = " · ".join(filter(None, (row["tenant"], row["service"], row["vantage"])))
        rates = (f"{row['burn_rate']:,.2f}", f"{row['burn_limit']:g}")
        counts = (count(int(row["bad"])), count(int(row["streams"])), _end_users(row))
        state = Text("fires", style="bold red") if row["firing"] else Text(row["reason"])
        table.add_row(RULES[row["rule"]], where, row["severity"], *rates, *counts, _window(int(row["window_s"])), state)
        if row["firing"]:
            messages.append(Text.assemble("\n", (f"{row['severity']} · {RULES[row['rule']]} · {where}: ", "bold"), row["message"]))
    quiet = len({_budget(row) for row in rows} - {_budget(row) for row in burning})
    return Group(head, Text(""), table, *messages, Text(f"\n{quiet} budgets have no bad streams" if quiet else ""))


def _end_users(row: Row) -> str:
    """Return ``302 of 640``, or ``unknown`` if no stream of the window names its end user."""
    return f"{count(int(row['users_bad']))} of {count(int(row['users']))}" if int(row["users"]) else "unknown"


def _budget(row: Row) -> tuple[str, ...]:
    return (row["rule"], row["tenant"], row["service"], row["vantage"])


def _window(seconds: int) -> str:
    """Return ``5 min``, ``6 h`` or ``3 d``."""
    for unit, length in (("d", 86_400), ("h", 3_600)):
        if seconds % length == 0:
            return f"{seconds // length} {unit}"
    return f"{seconds // 60} min"
