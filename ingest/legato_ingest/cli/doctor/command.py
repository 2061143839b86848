"""`legato doctor`: the command.

It runs the checks of ``endpoints``, ``grpc_endpoint`` and ``data`` and prints each finding at once; the exit status is 1 when there is a
fault.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from legato_ingest.cli.doctor.findings import Finding
from legato_ingest.cli.layout import Prose, console, print_json
from legato_ingest.cli.read import JsonOption, UrlOption
from legato_ingest.reports.senders import as_json as to_json
from legato_ingest.reports.senders import fetch
from legato_ingest.visible import visible

__all__ = ["register"]

_SIGNS = {"well": ("✓ ok", "green"), "warning": ("! warning", "yellow"), "fault": ("✗ fault", "red"), "skipped": ("– skipped", "dim")}


def register(root: typer.Typer) -> None:
    """Add the command to ``root``."""
    root.command()(doctor)


def _line(finding: Finding) -> Table:
    """The sign and the word of the state, and next to it the finding and what to do."""
    table = Table.grid(Column(width=9), Column(overflow="fold"), padding=(0, 1))
    table.add_row(Text(*_SIGNS[finding.state]), Prose.assemble((finding.check, "bold"), f": {visible(finding.found)}"))
    if finding.todo:
        table.add_row("", Prose(f"→ {visible(finding.todo)}"))
    return table


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def doctor(
    otlp: Annotated[
        str, typer.Option(envvar="LEGATO_ENDPOINT", help="URL of the OTLP endpoint of `legato serve`, to which emitters send")
    ] = "",
    url: UrlOption = "",
    collector: Annotated[
        str, typer.Option(envvar="LEGATO_COLLECTOR_METRICS_URL", help="URL of a Collector's metrics: http://HOST:8888/metrics")
    ] = "",
    emitters: Annotated[
        bool, typer.Option("--emitters", help="List who sends spans instead: what is stored and ignored, and what each cannot say")
    ] = False,
    hours: Annotated[int, typer.Option(min=1, max=720, help="With --emitters: how far back")] = 24,
    as_json: JsonOption = False,
) -> None:
    """Check this installation, and print what to do about each fault.

    The command queries the endpoints as an emitter (LEGATO_TOKEN) and as a reader (LEGATO_READ_PASSWORD), and reads the files in the
    settings of `legato serve`: run it on the same host, with the same settings. It changes nothing. The exit status is 1 if there is any
    fault.

    `--emitters` answers another question: which spans arrive, and why some of them are no streams.

    Example: legato doctor --collector http://127.0.0.1:8888/metrics
    """
    from legato_ingest.cli.doctor import data, endpoints, grpc_endpoint
    from legato_ingest.cli.doctor.emitters import print_senders
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
    if emitters:
        senders = fetch(setup.reader.rows, hours)
        if as_json:
            print_json(to_json(senders))
        else:
            print_senders(senders, hours, console())
        return
    screen, findings = console(), []
    for finding in examine(setup, (*endpoints.CHECKS, *grpc_endpoint.CHECKS, *data.CHECKS)):
        findings.append(finding)
        if not as_json:
            screen.print(_line(finding))
    faults = sum(finding.state == "fault" for finding in findings)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        warnings = sum(finding.state == "warning" for finding in findings)
        screen.print(f"{_counted(faults, 'fault')}, {_counted(warnings, 'warning')}, {len(findings)} checks")
    raise typer.Exit(1 if faults else 0)
