"""`legato doctor`: the command.

One idea: findings are printed as they come, the worst last in colour and first in the exit status; it judges nothing itself.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from legato_ingest.cli.read import JsonOption, UrlOption

__all__ = ["register"]

_SIGNS = {"well": "[green]✓[/]", "warning": "[yellow]![/]", "fault": "[red]✗[/]", "skipped": "[dim]–[/]"}


def register(root: typer.Typer) -> None:
    """Add the command to ``root``."""
    root.command()(doctor)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def doctor(
    otlp: Annotated[str, typer.Option(envvar="LEGATO_ENDPOINT", help="Where emitters send: `legato serve`'s OTLP door")] = "",
    url: UrlOption = "",
    collector: Annotated[str, typer.Option(envvar="LEGATO_COLLECTOR_METRICS_URL", help="A Collector's: http://HOST:8888/metrics")] = "",
    as_json: JsonOption = False,
) -> None:
    """Say what is wrong with this set-up, and what to do.

    Asks the doors as an emitter (LEGATO_TOKEN) and as a reader (LEGATO_READ_PASSWORD) would, and reads the files that the settings
    of `legato serve` name: run it where `serve` runs, with its settings. Changes nothing. The exit status is 1 when there is a fault.

    Example: legato doctor --collector http://127.0.0.1:8888/metrics
    """
    from legato_ingest.cli.doctor import data, endpoints
    from legato_ingest.cli.doctor.findings import Setup, examine
    from legato_ingest.settings import load

    settings = load()
    scheme = "https" if settings.tls_cert_file else "http"
    setup = Setup(
        settings,
        (otlp or f"{scheme}://127.0.0.1:{settings.otlp_port}").rstrip("/"),
        url or f"{scheme}://127.0.0.1:{settings.read_port}",
        collector,
        os.environ.get("LEGATO_TOKEN", ""),
        settings.read_password.get_secret_value(),
    )
    console, findings = Console(highlight=False), []
    for finding in examine(setup, (*endpoints.CHECKS, *data.CHECKS)):
        findings.append(finding)
        if not as_json:
            console.print(f"{_SIGNS[finding.state]} [bold]{finding.check}[/]: {escape(finding.found)}", soft_wrap=True)
            if finding.todo:
                console.print(f"    → {escape(finding.todo)}", soft_wrap=True)
    faults = sum(finding.state == "fault" for finding in findings)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings]))
    else:
        warnings = sum(finding.state == "warning" for finding in findings)
        console.print(f"{_counted(faults, 'fault')}, {_counted(warnings, 'warning')}, of {len(findings)} checks")
    raise typer.Exit(1 if faults else 0)
