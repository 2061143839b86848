"""`python -m demo.load`: the demo's server and clients as a load generator for a Legato that runs elsewhere, as in docker-compose.yml.

It runs the processes of `make demo` without the store: a server that replays recordings and their engine steps, and `openai` clients that
read them. It repeats until it receives a signal. The SDK's settings (LEGATO_ENDPOINT, LEGATO_TOKEN) apply.
"""

from __future__ import annotations

import pathlib
import secrets
import signal
import sys
import tempfile
from typing import Annotated

import typer

from demo.plan import Plan
from demo.processes import ChildFailed, Children, choose_port

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


_RecordingOption = Annotated[list[str], typer.Option(help="calm, kv, net, or a folder with server.jsonl.gz; several are replayed in turn")]


@app.command()
def main(
    endpoint: Annotated[str, typer.Option(envvar="LEGATO_ENDPOINT", help="OTLP endpoint to export to")] = "http://127.0.0.1:4318",
    recording: _RecordingOption = ["calm", "kv"],  # noqa: B006 - typer copies it
    speed: Annotated[float, typer.Option(min=0.1, max=100, help="Replay speed: 2 halves every gap")] = 1.0,
    seconds: Annotated[float | None, typer.Option(min=1, help="Replay only the first seconds of each recording")] = None,
    times: Annotated[int, typer.Option(min=0, help="Number of repetitions; 0: until a signal is received")] = 0,
) -> None:
    """Replay recorded streams through a real server and real clients, and export their spans to a Legato."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    done = 0
    with tempfile.TemporaryDirectory() as folder:
        while not times or done < times:
            # Each repetition has a new run id, so its response ids are new.
            _replay(Plan(tuple(recording), speed, seconds, secrets.token_hex(2)), endpoint, pathlib.Path(folder))
            done += 1
            print(f"replayed {', '.join(recording)}: {done}", flush=True)


def _replay(plan: Plan, endpoint: str, folder: pathlib.Path) -> None:
    port = choose_port(0)
    with Children(folder) as children:
        children.start("server", ["demo.server", plan.to_json(), "--port", str(port), "--otlp", endpoint])
        children.wait_ready("server", f"http://127.0.0.1:{port}/healthz")
        children.start("clients", ["demo.clients", plan.to_json(), "--server", f"http://127.0.0.1:{port}/v1", "--otlp", endpoint])
        children.wait("clients")
        # On SIGTERM the server flushes its spans before it exits.
        children.stop("server")
        children.check()


if __name__ == "__main__":
    try:
        app()
    except (ChildFailed, FileNotFoundError) as error:
        print(f"demo.load: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(0)
