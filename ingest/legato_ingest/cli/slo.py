"""`legato slo`: the burn rates that the alert rules see.

It runs the statements of the alert rules (``dashboards/alerts/*.sql``) and prints their results. It computes no burn rate itself.
"""

from __future__ import annotations

import pathlib
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from legato_ingest.cli.client import Reader
from legato_ingest.cli.layout import Column, FittedTable, Prose
from legato_ingest.errors import LegatoError
from legato_ingest.objectives import DEFAULT
from legato_ingest.quoting import literal
from legato_ingest.reports.format import clean, count
from legato_ingest.reports.time_range import utc
from legato_ingest.visible import visible

__all__ = ["RULES", "BurnRates", "as_json", "fetch", "render"]

RULES = {"itl_burn": "ITL goodput", "ttft_burn": "first output", "reader_burn": "end users' own stalls"}
_NOW = re.compile(r"\bnow\(\) AS at,")
# The end of a statement: of the rows that are asked for, so many.
_ORDERED = re.compile(r"(?=\nORDER BY [^\n]+\nLIMIT 1000\s*$)")
Row = dict[str, Any]
# A change that broke something is usually a few minutes older than the first bad streams.
_BEFORE_S = 600
_COLUMNS = (
    Column("budget", folds=12),
    Column("service · vantage", folds=14),
    Column("severity"),
    Column("burn rate", right=True),
    Column("limit", drop=3, right=True),
    Column("bad streams", right=True),
    Column("end users", drop=2, right=True),
    Column("window", drop=1),
    Column("state", folds=24),
)


@dataclass(frozen=True, slots=True)
class BurnRates:
    """The rows of the rules, and what was asked for: a service and a tenant (empty: any), and a moment (unix s; 0: now)."""

    rows: list[Row]
    service: str = ""
    tenant: str = ""
    at_s: int = 0


def fetch(reader: Reader, folder: pathlib.Path, service: str = "", tenant: str = "", at_s: int = 0) -> BurnRates:
    """Return one row per rule, service, vantage, objective and severity: firing rules first, pages before tickets. Raises ``LegatoError``.

    ``service``, ``tenant``: only these; empty: any. ``at_s``: the moment (unix s) for which the rules are evaluated; 0: now.
    """
    rows: list[Row] = []
    for name in RULES:
        path = folder / "alerts" / f"{name}.sql"
        if not path.is_file():
            raise LegatoError(f"{path} does not exist: set LEGATO_DASHBOARDS_DIR to the repository's dashboards folder")
        sql = path.read_text(encoding="utf-8")
        if at_s:
            sql, places = _NOW.subn(f"toDateTime({at_s}, 'UTC') AS at,", sql)
            if places != 1:
                raise LegatoError(f"{path} reads the clock in {places} lines, expected 1: rebuild it with `python -m dashboards`")
        rows += [{"rule": name, **row, "firing": bool(row["firing"])} for row in reader.rows(_of(sql, path, service, tenant))]
    names = ("rule", "service", "vantage", "objective")
    rows.sort(key=lambda row: (not row["firing"], row["severity"] != "page", -row["burn_rate"], *(row[name] for name in names)))
    return BurnRates(rows, service, tenant, at_s)


def _of(sql: str, path: pathlib.Path, service: str, tenant: str) -> str:
    """Return the statement for one service and tenant (empty: any): a condition before its limit, which other rows could use up."""
    given = [f"{column} = {literal(name)}" for column, name in (("service", service), ("tenant", tenant)) if name]
    if not given:
        return sql
    limited, places = _ORDERED.subn(lambda _: f"\nWHERE {' AND '.join(given)}", sql)
    if places != 1:
        raise LegatoError(f"{path} has {places} ends with ORDER BY and LIMIT 1000, expected 1: rebuild it with `python -m dashboards`")
    return limited


def as_json(found: BurnRates) -> list[Row]:
    """Return the rows unchanged."""
    return found.rows


def render(found: BurnRates) -> RenderableType:
    """Return the rows for a terminal."""
    rows = found.rows
    if not rows:
        return Prose(_nothing(found))
    targets = {row["objective"]: float(row["target"]) for row in sorted(rows, key=lambda row: row["objective"] != DEFAULT)}
    head = Prose("\n".join(_objective(name, target, named=len(targets) > 1) for name, target in targets.items()))
    table = FittedTable(_COLUMNS)
    burning = [row for row in rows if row["bad"]]
    messages = []
    for row in clean(burning):
        where = " · ".join(filter(None, (row["tenant"], row["service"], row["vantage"], row["objective"] if len(targets) > 1 else "")))
        rates = (f"{row['burn_rate']:,.2f}", f"{row['burn_limit']:g}")
        counts = (f"{count(int(row['bad']))} of {count(int(row['streams']))}", _end_users(row))
        state = Text("fires", style="bold red") if row["firing"] else row["reason"] or "below the limit"
        table.add_row(RULES[row["rule"]], where, row["severity"], *rates, *counts, _window(int(row["window_s"])), state)
        if row["firing"]:
            title = (f"{row['severity']} · {RULES[row['rule']]} · {where}: ", "bold")
            section = row["cause"] or row["rule"]
            messages.append(Prose.assemble("\n", title, row["message"], f" What to do: {section} in docs/runbook.md."))
            messages += [Prose(f"  {command}") for command in _next(row, found.at_s)]
    quiet = len({_budget(row) for row in rows} - {_budget(row) for row in burning})
    return Group(head, _firing(rows), Text(""), table, *messages, Text(f"\n{quiet} budgets have no bad streams" if quiet else ""))


def _nothing(found: BurnRates) -> str:
    """Return that there is no row, and of what and when."""
    given = (("service", found.service), ("tenant", found.tenant))
    which = "".join(f" of the {word} {visible(name)}" for word, name in given if name)
    when = f"in the three days before {utc(found.at_s * 10**9)} UTC" if found.at_s else "in the last three days"
    return f"no stream{which} ended {when}: no budget burns"


def _firing(rows: list[Row]) -> Text:
    """What fires, counted by severity."""
    counts = Counter(str(row["severity"]) for row in rows if row["firing"])
    named = ", ".join(f"{counts[name]} {name}{'' if counts[name] == 1 else 's'}" for name in ("page", "ticket") if counts[name])
    return Prose(f"firing: {named}" if named else "nothing fires")


def _objective(name: str, target: float, *, named: bool) -> str:
    """Return the target in words, with the name of its objective where there are several."""
    return f"{f'{name}: ' if named else ''}{100 * target:.6g} % of the streams should be good; {100 * (1 - target):.4g} % may be bad"


def _next(row: Row, at_s: int) -> Iterator[str]:
    """The commands that show the cause, the worst stream, and the page for the ticket. A client's stalls have its service's name.

    ``at_s``: the moment (unix s) of which the row is and at which the commands end; 0: now.
    """
    which = f" --service {shlex.quote(row['service'])}" if row["vantage"] == "client" and row["service"] else ""
    which += f" --tenant {shlex.quote(row['tenant'])}" if row["tenant"] else ""
    # The end of the moment's minute.
    which = (f" --to {_minute(at_s + 59)}" if at_s else "") + which
    begin_s = int(row["from_ms"]) // 1_000
    yield f"legato blame --from {_minute(begin_s)}{which}"
    if row["trace"]:
        yield f"legato stream {row['trace'][:12]}"
    if row["severity"] == "page":
        yield f"legato incident --from {_minute(begin_s - _BEFORE_S)}{which}"


def _minute(at_s: int) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M}"


def _end_users(row: Row) -> str:
    """Return ``302 of 640``, or ``unknown`` if no stream of the window names its end user."""
    return f"{count(int(row['users_bad']))} of {count(int(row['users']))}" if int(row["users"]) else "unknown"


def _budget(row: Row) -> tuple[str, ...]:
    return (row["rule"], row["tenant"], row["service"], row["vantage"], row["objective"])


def _window(seconds: int) -> str:
    """Return ``5 min``, ``6 h`` or ``3 d``."""
    for unit, length in (("d", 86_400), ("h", 3_600)):
        if seconds % length == 0:
            return f"{seconds // length} {unit}"
    return f"{seconds // 60} min"
