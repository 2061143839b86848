"""`python -m demo`: what can be typed, and nothing else."""

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
from demo.run import run
from legato_ingest.errors import LegatoError

_DATA = pathlib.Path(__file__).resolve().parents[1] / ".legato" / "demo"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_RecordingOption = Annotated[
    list[str],
    typer.Option(help="calm, kv, net, or a folder with server.jsonl.gz; several follow one another [default: kv]", show_default=False),
]
_SpeedOption = Annotated[float, typer.Option(min=0.1, max=100, help="How fast to replay: 2 halves every gap")]
_SecondsOption = Annotated[float | None, typer.Option(min=1, help="Replay only the first seconds of each recording [default: all]")]
_OnceOption = Annotated[bool, typer.Option("--once", help="End after the report; the last line is JSON")]
_KeepOption = Annotated[bool, typer.Option("--keep", help="Keep what earlier runs stored [default: start with an empty store]")]
_PastOption = Annotated[bool, typer.Option(help="Also place recordings over the last two weeks, for the dashboards")]
_IncidentOption = Annotated[str, typer.Option(help="kv: have the past's KV incident go on until now [default: it was two hours ago]")]
_DataOption = Annotated[pathlib.Path, typer.Option(help="Folder of the demo's store and its logs")]


@app.command()
def main(
    recording: _RecordingOption = [],  # noqa: B006 - typer copies it
    speed: _SpeedOption = 1.0,
    seconds: _SecondsOption = None,
    once: _OnceOption = False,
    keep: _KeepOption = False,
    past: _PastOption = True,
    incident: _IncidentOption = "",
    data: _DataOption = _DATA,
) -> None:
    """Watch real LLM streams being recorded, stored and summarised.

    A server replays what a real vLLM engine once sent, frame by frame and at its own pace, as OpenAI's SSE. `openai` clients read it,
    Legato's SDK records both ends, `legato serve` stores them, `legato report` sums them up.

    \b
    calm   12 streams and nothing wrong
    kv     22 streams in a small KV cache: preemptions stall everyone (77 s)
    net    8 streams; what the network did to them is not in the server's times

    \b
    make demo                                         the kv recording in real time, then `legato serve` stays up
    make demo ARGS="--recording calm --seconds 15"    the first 15 s of another
    make demo ARGS="--recording kv --speed 2 --once"  twice as fast, and end after the report
    make demo ARGS="--incident kv"                    a calm replay, and a KV incident that the alert rules see
    """
    if incident not in ("", "kv"):
        raise typer.BadParameter(f"{incident!r} is no incident: write kv, or leave it out", param_hint="--incident")
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    plan = Plan(tuple(recording) or (("calm",) if incident else ("kv",)), speed, seconds, secrets.token_hex(2))
    try:
        data.mkdir(parents=True, exist_ok=True)
        result = run(plan, data, console, once=once, keep=keep, past=past, incident=incident)
    except KeyboardInterrupt:
        console.print("stopped: all of the demo's processes have ended")
        sys.exit(130)
    except (ChildFailed, OSError, RuntimeError, LegatoError, subprocess.CalledProcessError) as error:
        Console(stderr=True).print(f"demo: {error}", style="red", markup=False, highlight=False)
        sys.exit(1)
    if once:
        print(json.dumps(result.to_dict()), flush=True)


if __name__ == "__main__":
    app()
