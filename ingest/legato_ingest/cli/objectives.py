"""`legato objectives`: the objectives of the SLO with the error budget that is left of each, and the command that applies a changed file.

`show` queries the read endpoint. `apply` changes the store, in the running `legato serve` if one holds it. The module judges no stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from legato_ingest.cli.client import DEFAULT_URL
from legato_ingest.cli.layout import Column, FittedTable, Prose, print_line
from legato_ingest.cli.read import JsonOption, UrlOption, querying, reader_of, show
from legato_ingest.cli.store_choice import StoreOption, store_settings
from legato_ingest.objectives import ANY
from legato_ingest.reports.format import DASH, clean, count, duration, some

__all__ = ["BUDGETS", "register", "render"]

app = typer.Typer(
    name="objectives",
    help="The objectives of the SLO: what a good stream is, and which share of the streams has to be good.",
    no_args_is_help=True,
)
Row = dict[str, Any]
_DAYS = 30
_LIMITS = (
    Column("objective", folds=12),
    Column("streams of", folds=16),
    Column("target", right=True),
    Column("gap limit", right=True),
    Column("first output", right=True),
)
_BUDGETS = (
    Column("objective", folds=12),
    Column("service · vantage", folds=16),
    Column("streams", right=True),
    Column("bad", right=True),
    Column("budget left", right=True),
)
# One row per objective and tenant, service and vantage with streams; one row for an objective without streams. An objective that does not
# apply any more has rows while streams of the days count by its name: those of which the raw rows have expired keep it.
BUDGETS = f"""
WITH
    budgets AS
    (
        SELECT
            objective AS name, stream_hours.tenant AS stream_tenant, service_name, vantage,
            sum(judged) AS streams, sum(judged) - sum(good) AS bad
        FROM stream_hours FINAL
        WHERE minute > now() - INTERVAL {_DAYS} DAY AND judged > 0
        GROUP BY name, stream_tenant, service_name, vantage
    ),
    named AS
    (
        SELECT name, toUInt32(rank) AS place, tenant, service, model, route, target, gap_limit_us, first_output_limit_us, 0 AS is_removed
        FROM current_objectives
        UNION ALL
        SELECT
            name, 65536, argMax(tenant, applied_at), argMax(service, applied_at), argMax(model, applied_at), argMax(route, applied_at),
            argMax(target, applied_at), argMax(gap_limit_us, applied_at), argMax(first_output_limit_us, applied_at), 1
        FROM objectives
        WHERE name NOT IN (SELECT name FROM current_objectives) AND name IN (SELECT name FROM budgets)
        GROUP BY name
    )
SELECT
    name, tenant, named.service AS service_pattern, model AS model_pattern, route AS route_pattern, target, gap_limit_us,
    first_output_limit_us, is_removed, stream_tenant, service_name AS service, vantage, streams, bad,
    if(streams > 0, 1 - bad / (streams * (1 - target)), NULL) AS budget_left
FROM named
LEFT JOIN budgets USING (name)
ORDER BY place, name, streams DESC, stream_tenant, service, vantage
LIMIT 1 BY name, stream_tenant, service, vantage
LIMIT 1000
"""


def register(root: typer.Typer) -> None:
    """Add the commands to ``root``."""
    root.add_typer(app)


@app.command("show")
def show_objectives(as_json: JsonOption = False, url: UrlOption = DEFAULT_URL) -> None:
    """Show the objectives that apply, in their order, and what is left of each error budget of the last 30 days.

    The first objective that matches a stream applies to the stream. The error budget is the number of bad streams that the target allows.

    Examples: legato objectives show; legato objectives show --json | jq '.[] | select(.budget_left < 0)'
    """
    with querying():
        rows = reader_of(url).rows(BUDGETS)
    show(rows if as_json else render(rows))


@app.command("apply")
def apply_objectives(store: StoreOption = None) -> None:
    """Apply the file LEGATO_OBJECTIVES_FILE after a change, and count the streams of all earlier minutes by it.

    If a running `legato serve` holds the store, the command runs inside it, with the file of its settings.

    Example: legato objectives apply
    """
    from legato_ingest.cli.admin_client import objectives_apply as run

    settings = store_settings(store)
    with Console(stderr=True).status("computing …"):
        done = run(settings)
    changed = "applied" if done["changed"] else "unchanged"
    print_line(f"{some(done['objectives'], 'objective')} {changed}; {done['minutes']:,} minutes computed, {done['seconds']:.1f} s")


def render(rows: Sequence[Row]) -> RenderableType:
    """Return the objectives and the budgets for a terminal."""
    rows = [clean(row) for row in rows]
    limits = FittedTable(_LIMITS)
    for row in {row["name"]: row for row in rows if not row["is_removed"]}.values():
        times = (duration(int(row["gap_limit_us"])), duration(int(row["first_output_limit_us"])))
        limits.add_row(row["name"], _pattern(row), f"{100 * row['target']:.6g} %", *times)
    budgets = FittedTable(_BUDGETS, f"Error budget of the last {_DAYS} days")
    for row in rows:
        if int(row["streams"]):
            where = " · ".join(filter(None, (row["stream_tenant"], row["service"] or "(no service)", row["vantage"])))
            name = f"{row['name']} (removed)" if row["is_removed"] else row["name"]
            budgets.add_row(name, where, count(int(row["streams"])), count(int(row["bad"])), _left(row["budget_left"]))
    return Group(limits, Text(), budgets if budgets.rows else Prose(f"no stream ended in the last {_DAYS} days"))


def _pattern(row: Row) -> str:
    """Return the patterns that do not match everything, such as ``service voice-*``."""
    given = (("tenant", "tenant"), ("service", "service_pattern"), ("model", "model_pattern"), ("route", "route_pattern"))
    return ", ".join(f"{word} {row[name]}" for word, name in given if row[name] != ANY) or "all others"


def _left(share: float | None) -> str:
    """Return the share of the budget that is left in words; a budget that is used up several times has no useful share."""
    if share is None:
        return DASH
    return f"{100 * share:.0f} %" if share >= 0 else f"none, used {1 - share:,.1f} times"
