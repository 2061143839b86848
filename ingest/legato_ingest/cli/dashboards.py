"""`legato dashboards`: `push` copies the dashboards to a Grafana, `check` runs their queries through it.

Each result is one line, and the exit status is 1 when any failed. Credentials come from the environment only, because other users of the
host can see a command's arguments. The commands open no store.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console

from legato_ingest.cli.layout import Column, FittedTable, console, print_json
from legato_ingest.cli.options import seconds_of

__all__ = ["register"]

app = typer.Typer(name="dashboards", help="Push Legato's dashboards to a Grafana, and check their queries.", no_args_is_help=True)

# Rollups have a resolution of one minute, so no panel needs shorter points.
_POINT_S_MIN, _POINTS = 60, 1000

UrlOption = Annotated[str, typer.Option(envvar="LEGATO_GRAFANA_URL", help="URL of Grafana, with its sub-path if it has one")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text")]
_URL = "http://127.0.0.1:3000"


def register(parent: typer.Typer) -> None:
    """Add the commands to ``parent``."""
    parent.add_typer(app)


@app.command()
def push(
    url: UrlOption = _URL,
    clickhouse: Annotated[
        str, typer.Option(help="URL of `legato serve` or a ClickHouse server, as Grafana's host reaches it")
    ] = "http://127.0.0.1:8123",
    as_json: JsonOption = False,
) -> None:
    """Create the folder Legato, the data source and all dashboards in a running Grafana.

    Run it again after an upgrade: it overwrites changed dashboards, including edits made in Grafana. An existing data source with the uid
    `legato` is not changed. Alert rules are files that Grafana reads: see dashboards/README.md.

    Set LEGATO_GRAFANA_TOKEN to a service account's token (role Editor; Admin to create the data source), or set LEGATO_GRAFANA_USER and
    LEGATO_GRAFANA_PASSWORD. The data source gets LEGATO_READ_USER and LEGATO_READ_PASSWORD if they are set.

    Example: legato dashboards push --url https://grafana.example/ --clickhouse http://10.0.0.7:8123
    """
    from legato_ingest.cli.grafana.client import Grafana, Source, credential_of
    from legato_ingest.dashboards import files as dashboard_files
    from legato_ingest.settings import load

    settings = load()
    boards = dashboard_files.load(settings.dashboards_dir)
    password = settings.read_password.get_secret_value()
    user = settings.read_user if password or "read_user" in settings.model_fields_set else ""
    screen, done = console(), []
    with Grafana(url, credential_of(settings)) as grafana, Console(stderr=True).status("querying Grafana …") as status:
        for each in grafana.push(boards, Source(clickhouse, user, password)):
            done.append(each)
            status.update(f"{sum(one.what == 'dashboard' for one in done)} of {len(boards)} dashboards …")
            if not as_json:
                # The line of the status is cleared before, or it would stand in front of this one.
                status.stop()
                screen.print(f"{each.did:9}  {each.what} {each.name}  {each.error or each.url}".rstrip(), soft_wrap=True)
                status.start()
    _end(sum(each.did == "failed" for each in done), {"did": [asdict(each) for each in done]}, as_json)


@app.command()
def check(
    url: UrlOption = _URL,
    since: Annotated[str, typer.Option(help="Time range of the queries: 90s, 15m, 1h, 7d, 2w, or all")] = "6h",
    as_json: JsonOption = False,
) -> None:
    """Run the query of every panel, annotation and variable through Grafana, with default variables: rows, time and errors.

    Grafana and its ClickHouse plugin expand the macros and query the store, as for a browser. The queries come from the files in
    LEGATO_DASHBOARDS_DIR, not from the pushed dashboards. A query without rows is no error: there may be no such data.

    Credentials as for `legato dashboards push`; the role Viewer is sufficient.

    Examples: legato dashboards check; legato dashboards check --since 7d --json | jq '.answers[] | select(.error != "")'
    """
    from legato_ingest.cli.grafana.client import Grafana, credential_of
    from legato_ingest.dashboards import files as dashboard_files
    from legato_ingest.dashboards.macros import Range
    from legato_ingest.settings import load

    settings, length_s, now_ms = load(), seconds_of(since), time.time_ns() // 1_000_000
    queries = [one for board in dashboard_files.load(settings.dashboards_dir) for one in dashboard_files.queries(board)]
    from_ms = now_ms - 1000 * length_s if length_s else 0
    span = Range(from_ms, now_ms, 1000 * max(_POINT_S_MIN, (now_ms - from_ms) // 1000 // _POINTS))
    results = []
    with Grafana(url, credential_of(settings)) as grafana, Console(stderr=True).status("querying Grafana …") as status:
        grafana.expect_source()
        for number, query in enumerate(queries, 1):
            status.update(f"{number} of {len(queries)}: {query.dashboard} · {query.name}")
            results.append(grafana.run(query, span))
    rows = [_row(result) for result in results]
    if not as_json:
        _show(rows)
    _end(sum(bool(row["error"]) for row in rows), {"from_ms": from_ms, "to_ms": now_ms, "answers": rows}, as_json)


def _row(result: Any) -> dict[str, Any]:
    query = result.query
    named = {"uid": query.uid, "dashboard": query.dashboard, "kind": query.kind, "name": query.name, "ref": query.target["refId"]}
    return {**named, "rows": result.rows, "seconds": round(result.seconds, 3), "error": result.error}


def _show(rows: Sequence[dict[str, Any]]) -> None:
    columns = (Column("dashboard", folds=20), Column("query", folds=24), Column("rows", right=True), Column("ms", right=True))
    screen, table = console(), FittedTable(columns)
    for row in rows:
        name = row["name"] if row["kind"] == "panel" else f"{row['kind']} {row['name']}"
        table.add_row(row["dashboard"], name, "failed" if row["error"] else f"{row['rows']:,}", f"{1000 * row['seconds']:,.0f}")
    screen.print(table)
    for row in _failed(rows):
        screen.print(f"failed  {row['dashboard']} · {row['kind']} {row['name']}: {row['error']}", soft_wrap=True)
    empty = sum(row["rows"] == 0 and not row["error"] for row in rows)
    slowest = max((row["seconds"] for row in rows), default=0.0)
    screen.print(f"{len(rows)} queries, {len(_failed(rows))} failed, {empty} without rows; the slowest took {slowest:.2f} s")


def _failed(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["error"]]


def _end(failed: int, result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json({**result, "failed": failed})
    if failed:
        raise typer.Exit(1)
