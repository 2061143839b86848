"""The command line of `python -m demo`."""

from __future__ import annotations

import json
import pathlib
import secrets
import signal
import subprocess
import sys
from typing import Annotated

import typer
from rich.console import Console

from demo.plan import Plan
from demo.processes import ChildFailed
from demo.run import Endpoints, run
from legato_ingest.cli.layout import console
from legato_ingest.errors import LegatoError

_DATA = pathlib.Path(__file__).resolve().parents[1] / ".legato" / "demo"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_RecordingOption = Annotated[
    list[str],
    typer.Option(help="calm, kv, net, or a folder with server.jsonl.gz; several are replayed in turn (default: kv)", show_default=False),
]
_SpeedOption = Annotated[float, typer.Option(min=0.1, max=100, help="Replay speed: 2 halves every gap")]
_SecondsOption = Annotated[float | None, typer.Option(min=1, help="Replay only the first seconds of each recording (default: all)")]
_OnceOption = Annotated[bool, typer.Option("--once", help="Exit after the report; the last line is JSON")]
_KeepOption = Annotated[bool, typer.Option("--keep", help="Keep the streams of earlier runs (default: start with an empty store)")]
_PastOption = Annotated[bool, typer.Option(help="Also store recordings dated over the last two weeks, for the dashboards")]
_IncidentOption = Annotated[str, typer.Option(help="kv: the KV-cache incident lasts until now (default: it began two hours ago)")]
_ClientsOption = Annotated[
    str, typer.Option(help="recorded: the SDK records the clients; plain: only the server records, as for an engine with clients of others")
]
_DataOption = Annotated[pathlib.Path, typer.Option(help="Folder for the demo's store and logs")]
_OtlpPortOption = Annotated[int | None, typer.Option(help="Port of the OTLP endpoint (default: 4318, or a free one)")]
_WebPortOption = Annotated[int | None, typer.Option(help="Port of the web page (default: 8080, or a free one)")]
_ReadPortOption = Annotated[int | None, typer.Option(help="Port of the read endpoint (default: 8123, or a free one)")]


@app.command()
def main(
    recording: _RecordingOption = [],  # noqa: B006 - typer copies it
    speed: _SpeedOption = 1.0,
    seconds: _SecondsOption = None,
    once: _OnceOption = False,
    keep: _KeepOption = False,
    past: _PastOption = True,
    incident: _IncidentOption = "",
    clients: _ClientsOption = "recorded",
    data: _DataOption = _DATA,
    otlp_port: _OtlpPortOption = None,
    read_port: _ReadPortOption = None,
    web_port: _WebPortOption = None,
) -> None:
    """Replay recorded LLM streams and show how Legato records, stores and summarises them.

    A server replays the responses of a real vLLM engine as OpenAI's SSE, frame by frame at the recorded times. `openai` clients read them,
    Legato's SDK records both ends, `legato serve` stores the streams, and `legato report` summarises them.

    \b
    calm   12 streams at a time, without faults
    kv     22 streams at a time, and long prompts, in a small KV cache: preemptions stall all of them (77 s)
    net    8 streams at a time; their network faults are not replayed, because the server's times do not include them

    \b
    make demo                                         replay kv in real time; `legato serve` keeps running
    make demo ARGS="--recording calm --seconds 15"    replay the first 15 s of another recording
    make demo ARGS="--recording kv --speed 2 --once"  replay twice as fast and exit after the report
    make demo ARGS="--clients plain"                  only the server records: its own gaps get the verdicts
    make demo ARGS="--incident kv"                    a calm replay, and a KV-cache incident that fires an alert rule
    """
    if incident not in ("", "kv"):
        raise typer.BadParameter(f"got {incident!r}: expected kv, or omit the option", param_hint="--incident")
    if clients not in ("recorded", "plain"):
        raise typer.BadParameter(f"got {clients!r}: expected recorded or plain", param_hint="--clients")
    screen = console()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    plan = Plan(tuple(recording) or (("calm",) if incident else ("kv",)), speed, seconds, secrets.token_hex(2), clients == "plain")
    try:
        data.mkdir(parents=True, exist_ok=True)
        endpoints = Endpoints.choose(otlp_port, read_port, web_port)
        result = run(plan, data, endpoints, screen, once=once, keep=keep, past=past, incident=incident)
    except KeyboardInterrupt:
        screen.print("stopped: all of the demo's processes have ended")
        sys.exit(130)
    except (ChildFailed, OSError, RuntimeError, LegatoError, subprocess.CalledProcessError) as error:
        Console(stderr=True).print(f"demo: {error}", style="red", markup=False, highlight=False)
        sys.exit(1)
    if once:
        print(json.dumps(result.to_dict()), flush=True)


if __name__ == "__main__":
    app()
