"""Runs the demo from end to end: start the store, the server and the clients; when all has been read, report.

One idea: the same steps that a user would take by hand, in the same order, with the same commands; the demo only types them. It measures
nothing itself: the numbers come from the store.
"""

from __future__ import annotations

import os
import pathlib
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from demo.compare import Comparison, compare
from demo.past import placements, send
from demo.plan import Plan
from demo.processes import Children, choose_port
from demo.progress import show
from legato_ingest.cli.client import DEFAULT_URL, Reader
from legato_ingest.storage.lock import StoreLock

__all__ = ["Doors", "recorded", "run", "start_server", "start"]

OTLP_PORT, READ_PORT = 4318, 8123
_JUDGED_S_MAX = 20.0
_PAST_S_MAX = 60.0
_SWEPT = """
SELECT (SELECT max(until) FROM attribution_runs) >= (SELECT max(received_at) FROM stream_revs) AS done"""
_ROLLED = """
SELECT
    (SELECT max(until) FROM rollup_runs) >= (SELECT max(received_at) FROM stream_revs)
    AND (SELECT max(judged_until) FROM rollup_runs) >= (SELECT max(judged_at) FROM verdicts) AS done"""
_WORST = """
SELECT left(lower(hex(trace_id)), 12) AS id FROM streams
WHERE vantage = 'client' AND startsWith(response_id, {prefix:String}) ORDER BY gap_max_us DESC LIMIT 1"""


@dataclass(frozen=True, slots=True)
class Doors:
    """Where this demo's processes listen: Legato's default ports when they are free."""

    otlp_port: int
    read_port: int
    server_port: int

    @classmethod
    def choose(cls) -> Doors:
        """Ports that are free now: the default ones if they are."""
        return cls(choose_port(OTLP_PORT), choose_port(READ_PORT), choose_port(0))

    @classmethod
    def choose_other(cls) -> Doors:
        """Free ports, never the default ones: a test leaves those to whoever is at work here."""
        return cls(choose_port(0), choose_port(0), choose_port(0))

    @property
    def otlp(self) -> str:
        """Where `legato serve` takes OTLP."""
        return f"http://127.0.0.1:{self.otlp_port}"

    @property
    def read(self) -> str:
        """Where `legato serve` answers queries."""
        return f"http://127.0.0.1:{self.read_port}"

    @property
    def server(self) -> str:
        """The demo's OpenAI-compatible server."""
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def engine_pipe(self) -> pathlib.Path:
        """Where the engine's plugin tells its agent."""
        return pathlib.Path(tempfile.gettempdir()) / f"legato-demo-{os.getuid()}-{self.otlp_port}" / "engine.pipe"


def run(
    plan: Plan, data_dir: pathlib.Path, console: Console, *, once: bool, keep: bool, past: bool = True, incident: str = ""
) -> Comparison:
    """One demo. Returns after the report (``once``), or when `legato serve` ends or the user has had enough (KeyboardInterrupt).

    ``past``: also place recordings over the last hours and weeks, the KV incident among them until now (``incident`` = ``kv``) or earlier.
    """
    doors = Doors.choose()
    with recorded(plan, data_dir, doors, console, keep=keep) as children:
        result = _report(plan, doors, console)
        if past:
            _fill_past(doors, console, incident)
        if not once:
            start_server(children, plan, doors)
            _hint(plan, doors, console)
            children.wait("serve")
    return result


@contextmanager
def recorded(plan: Plan, data_dir: pathlib.Path, doors: Doors, console: Console, *, keep: bool = False) -> Iterator[Children]:
    """The plan replayed and stored, with `legato serve` up for as long as the context lasts. Raises ``ChildFailed``, ``LegatoError``."""
    plan.recordings()
    _prepare(data_dir, keep)
    with Children(data_dir) as children:
        start(children, plan, data_dir, doors)
        console.print(
            f"[bold]legato serve[/] takes OTLP at {doors.otlp} and answers queries at {doors.read}", highlight=False, soft_wrap=True
        )
        console.print(
            f"[bold]an OpenAI-compatible server[/] replays {', '.join(plan.names)} at {doors.server}/v1", highlight=False, soft_wrap=True
        )
        try:
            _replay(children, plan, doors, console)
            yield children
        finally:
            shutil.rmtree(doors.engine_pipe.parent, ignore_errors=True)


def _prepare(data_dir: pathlib.Path, keep: bool) -> None:
    """An empty folder, unless the last run's streams are to be kept. Raises ``Locked`` when a demo uses it right now."""
    with StoreLock(_store(data_dir)):
        if not keep:
            shutil.rmtree(_store(data_dir), ignore_errors=True)


def _store(data_dir: pathlib.Path) -> pathlib.Path:
    return data_dir.absolute() / "store"


def start(children: Children, plan: Plan, data_dir: pathlib.Path, doors: Doors) -> None:
    """Start `legato serve` and the replaying server, and wait until both answer. Raises ``ChildFailed``."""
    environ = {
        "LEGATO_STORE": f"chdb://{_store(data_dir)}",
        "LEGATO_OTLP_PORT": str(doors.otlp_port),
        "LEGATO_READ_PORT": str(doors.read_port),
        # So that the demo need not wait long for its verdicts.
        "LEGATO_ATTRIBUTE_EVERY_S": "1",
        "LEGATO_ATTRIBUTE_SETTLE_S": "2",
        "LEGATO_ROLLUP_EVERY_S": "1",
        "LEGATO_CHUNKING_EVERY_S": "10",
    }
    children.start("serve", ["legato_ingest", "serve"], environ)
    children.wait_ready("serve", f"{doors.otlp}/readyz")
    beside = {"LEGATO_ENDPOINT": doors.otlp, "LEGATO_ENGINE_PIPE": str(doors.engine_pipe)}
    children.start("agent", ["legato_gpu_agent"], beside)
    start_server(children, plan, doors)


def start_server(children: Children, plan: Plan, doors: Doors) -> None:
    """Start the replaying server, for the first time or after it was stopped to hand over what it had. Raises ``ChildFailed``."""
    module = ["demo.server", plan.to_json(), "--port", str(doors.server_port), "--otlp", doors.otlp]
    children.start("server", module, {"LEGATO_ENGINE_PIPE": str(doors.engine_pipe)})
    children.wait_ready("server", f"{doors.server}/healthz")


def _replay(children: Children, plan: Plan, doors: Doors, console: Console) -> None:
    module = ["demo.clients", plan.to_json(), "--server", f"{doors.server}/v1", "--otlp", doors.otlp]
    clients = children.start("clients", module, {"LEGATO_CLIENT_HASH_KEY": secrets.token_hex(16)}, piped=True)
    assert clients.stdout is not None
    show(_checked(children, clients), console, plan.duration_s())
    children.wait("clients")
    with console.status("the last spans are on their way"):
        # A server that is asked to end hands over what it has first.
        children.stop("server")
        children.check()
    with console.status("the stalls are being judged"):
        _await_verdicts(doors)


def _fill_past(doors: Doors, console: Console, incident: str) -> None:
    """After the report, so that nothing disturbs the replay and the report is about what was just watched."""
    made = placements(time.time_ns(), incident)
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task("recordings are placed over the last two weeks", total=len(made))
        send(doors.otlp, made, lambda done: progress.update(task, completed=done))
    with console.status("its stalls are being judged, and its minutes rolled up"):
        _await(doors, _SWEPT, _PAST_S_MAX)
        _await(doors, _ROLLED, _PAST_S_MAX)
    _legato("slo", doors=doors, console=console)


def _await_verdicts(doors: Doors) -> None:
    """Until the attribution has gone over all that came in; for the time that it should need, and not longer."""
    _await(doors, _SWEPT, _JUDGED_S_MAX)


def _await(doors: Doors, question: str, seconds_max: float) -> None:
    reader, until = Reader(doors.read), time.monotonic() + seconds_max
    while time.monotonic() < until:
        (row,) = reader.rows(question)
        if row["done"]:
            return
        time.sleep(0.2)


def _checked(children: Children, clients: subprocess.Popen[str]) -> Iterator[str]:
    assert clients.stdout is not None
    for line in clients.stdout:
        children.check()
        yield line


def _report(plan: Plan, doors: Doors, console: Console) -> Comparison:
    """What the commands say, as a user would run them, the worst stream among it, and how all of it compares with the recording."""
    _legato("report", doors=doors, console=console)
    for row in Reader(doors.read).rows(_WORST, {"prefix": plan.response_id_prefix}):
        _legato("stream", str(row["id"]), doors=doors, console=console)
    _legato("blame", doors=doors, console=console)
    result = compare(plan, doors.read)
    console.rule("what was stored against what was recorded")
    table = Table("client vantage", "stored", "recorded", box=None, pad_edge=False)
    table.add_row("streams", str(result.streams), str(result.recorded_streams))
    table.add_row("stalls of 250 ms or more", str(result.stalls_250ms), str(result.recorded_stalls_250ms))
    table.add_row("… of these not found within 5 %", str(result.recorded_gaps_250ms_missed), "")
    table.add_row("… stalls that were judged, and those with a cause", f"{result.stalls_judged}, {result.stalls_explained}", "")
    table.add_row(
        f"gaps compared: {result.gaps:,}; they differ by, in ms",
        f"p50 {result.gap_diff_p50_ms:.1f}  p99 {result.gap_diff_p99_ms:.1f}  max {result.gap_diff_max_ms:.1f}",
        "",
    )
    console.print(table, highlight=False)
    return result


def _legato(*words: str, doors: Doors, console: Console) -> None:
    """Run a command of `legato` under its name."""
    console.rule(f"legato {' '.join(words)}")
    console.file.flush()
    subprocess.run([sys.executable, "-m", "legato_ingest", *words], env={**os.environ, "LEGATO_READ_URL": doors.read}, check=True)


def _command(doors: Doors) -> str:
    return ".venv/bin/legato" if doors.read == DEFAULT_URL else f"LEGATO_READ_URL={doors.read} .venv/bin/legato"


def _hint(plan: Plan, doors: Doors, console: Console) -> None:
    worst = Reader(doors.read).rows(_WORST, {"prefix": plan.response_id_prefix})
    legato = _command(doors)
    console.rule("what next")
    lines = [
        "legato serve is still up. In another terminal:",
        "",
        f"  {legato} streams",
        *(f"  {legato} stream {row['id']}   # the one that stalled longest, and why" for row in worst),
        f"  {legato} blame",
        f"  {legato} slo     # what the alert rules see",
        f"  curl {doors.read} --data 'SELECT vantage, count(), quantile(0.99)(gap_max_us) FROM streams GROUP BY vantage'",
        "",
        "Dashboards, in a Grafana of yours with the ClickHouse plugin (dashboards/README.md has other ways):",
        "",
        f"  LEGATO_GRAFANA_TOKEN=… {_command(doors)} dashboards push --url http://127.0.0.1:3000 --clickhouse {doors.read}",
        "",
        "The server still replays: each request gets the next recorded stream, and is stored.",
        "",
        f"""  curl -N {doors.server}/v1/chat/completions --data '{{"stream": true}}'""",
        "",
        "Ctrl-C ends all of it.",
    ]
    # Not in a box: these lines are there to be copied.
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
