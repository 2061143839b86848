"""The demo from start to end: start the store, the server and the clients, replay the streams, print the reports.

It runs the same commands in the same order as a user would. All numbers that it prints come from the store.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from demo.compare import Comparison, compare
from demo.past import placements, send
from demo.plan import Plan
from demo.processes import Children, choose_port
from demo.progress import show
from legato_ingest.cli.client import DEFAULT_URL, Reader, ReadError
from legato_ingest.storage.lock import StoreLock

__all__ = ["Endpoints", "recorded", "run", "start_server", "start"]

OTLP_PORT, READ_PORT, WEB_PORT = 4318, 8123, 8080
_ATTRIBUTION_S_MAX = 20.0
_PAST_S_MAX = 60.0
_ATTRIBUTED = """
SELECT (SELECT max(until) FROM attribution_runs) >= (SELECT max(received_at) FROM stream_revs) AS done"""
_ROLLED_UP = """
SELECT
    (SELECT max(until) FROM rollup_runs) >= (SELECT max(received_at) FROM stream_revs)
    AND (SELECT max(judged_until) FROM rollup_runs) >= (SELECT max(judged_at) FROM verdicts) AS done"""
_WORST = """
SELECT left(lower(hex(trace_id)), 12) AS id FROM streams
WHERE vantage = {at:String} AND startsWith(response_id, {prefix:String}) ORDER BY gap_max_us DESC LIMIT 1"""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The ports and addresses of this demo's processes."""

    otlp_port: int
    read_port: int
    web_port: int
    server_port: int

    @classmethod
    def choose(cls, otlp_port: int | None = None, read_port: int | None = None, web_port: int | None = None) -> Endpoints:
        """Choose the given ports; without one, Legato's default port if it is free, otherwise another free port.

        Raises ``OSError`` if a given port is not free.
        """
        given = (("--otlp-port", otlp_port, OTLP_PORT), ("--read-port", read_port, READ_PORT), ("--web-port", web_port, WEB_PORT))
        otlp, read, web = (_free(option, port) if port else choose_port(default) for option, port, default in given)
        return cls(otlp, read, web, choose_port(0))

    @classmethod
    def choose_other(cls) -> Endpoints:
        """Choose free ports other than the default ones, so that a test does not interfere with a running Legato."""
        return cls(*(choose_port(0) for _ in range(4)))

    @property
    def otlp(self) -> str:
        """URL of the OTLP endpoint of `legato serve`."""
        return f"http://127.0.0.1:{self.otlp_port}"

    @property
    def read(self) -> str:
        """URL of the read endpoint of `legato serve`."""
        return f"http://127.0.0.1:{self.read_port}"

    @property
    def web(self) -> str:
        """URL of the web page of `legato serve`."""
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def server(self) -> str:
        """URL of the demo's OpenAI-compatible server."""
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def engine_pipe(self) -> pathlib.Path:
        """Path of the pipe from the engine's plugin to its agent."""
        return pathlib.Path(tempfile.gettempdir()) / f"legato-demo-{os.getuid()}-{self.otlp_port}" / "engine.pipe"


def _free(option: str, port: int) -> int:
    if choose_port(port) != port:
        raise OSError(f"port {port} is in use: give {option} another one, or leave the option out for a free one")
    return port


def run(
    plan: Plan,
    data_dir: pathlib.Path,
    endpoints: Endpoints,
    console: Console,
    *,
    once: bool,
    keep: bool,
    past: bool = True,
    incident: str = "",
) -> Comparison:
    """Run one demo. Return after the report if ``once``; otherwise run until `legato serve` ends or KeyboardInterrupt is raised.

    ``past``: also store recordings dated over the last two weeks. ``incident`` = ``kv``: their KV-cache incident lasts until now.
    """
    with recorded(plan, data_dir, endpoints, console, keep=keep) as children:
        result = _report(plan, endpoints, console)
        if past:
            _fill_past(endpoints, console, incident)
        if not once:
            start_server(children, plan, endpoints)
            _hint(plan, endpoints, console)
            children.wait("serve")
    return result


@contextmanager
def recorded(plan: Plan, data_dir: pathlib.Path, endpoints: Endpoints, console: Console, *, keep: bool = False) -> Iterator[Children]:
    """Replay and store the plan; `legato serve` runs until the context ends. Raises ``ChildFailed`` or ``LegatoError``."""
    plan.recordings()
    _prepare(data_dir, keep)
    try:
        with Children(data_dir) as children:
            start(children, plan, data_dir, endpoints)
            for line in (
                f"[bold]legato serve[/] accepts OTLP at {endpoints.otlp} and answers queries at {endpoints.read}",
                f"[bold]open {endpoints.web}[/] in a browser: it fills while the streams run",
                f"[bold]an OpenAI-compatible server[/] replays {', '.join(plan.names)} at {endpoints.server}/v1",
            ):
                console.print(line, highlight=False, markup=True, soft_wrap=True)
            _replay(children, plan, endpoints, console)
            yield children
    finally:
        # Only after the agent has ended: a running agent creates the pipe again.
        shutil.rmtree(endpoints.engine_pipe.parent, ignore_errors=True)


def _prepare(data_dir: pathlib.Path, keep: bool) -> None:
    """Delete the last run's store unless ``keep``. Raises ``Locked`` if another demo uses the store."""
    with StoreLock(_store(data_dir)):
        if not keep:
            shutil.rmtree(_store(data_dir), ignore_errors=True)


def _store(data_dir: pathlib.Path) -> pathlib.Path:
    return data_dir.absolute() / "store"


def start(children: Children, plan: Plan, data_dir: pathlib.Path, endpoints: Endpoints) -> None:
    """Start `legato serve` and the replaying server, and wait until both answer. Raises ``ChildFailed``."""
    environ = {
        "LEGATO_STORE": f"chdb://{_store(data_dir)}",
        "LEGATO_OTLP_PORT": str(endpoints.otlp_port),
        "LEGATO_READ_PORT": str(endpoints.read_port),
        "LEGATO_WEB_PORT": str(endpoints.web_port),
        "LEGATO_WEB_NOTICE": f"Demo: since {datetime.now(UTC):%d %B %H:%M} UTC, real servers and clients replay recorded vLLM runs. "
        "Everything before is a simulated past: the same recordings, dated over the two weeks before.",
        # Short intervals, so that the demo need not wait long for verdicts and rollups.
        "LEGATO_ATTRIBUTE_EVERY_S": "1",
        "LEGATO_ATTRIBUTE_GRACE_S": "2",
        "LEGATO_ROLLUP_EVERY_S": "1",
        "LEGATO_CHUNKING_EVERY_S": "10",
    }
    children.start("serve", ["legato_ingest", "serve"], environ)
    children.wait_ready("serve", f"{endpoints.otlp}/readyz")
    agent_environ = {"LEGATO_ENDPOINT": endpoints.otlp, "LEGATO_ENGINE_PIPE": str(endpoints.engine_pipe)}
    children.start("agent", ["legato_gpu_agent"], agent_environ)
    start_server(children, plan, endpoints)


def start_server(children: Children, plan: Plan, endpoints: Endpoints) -> None:
    """Start the replaying server and wait until it answers. Raises ``ChildFailed``."""
    module = ["demo.server", plan.to_json(), "--port", str(endpoints.server_port), "--otlp", endpoints.otlp]
    children.start("server", module, {"LEGATO_ENGINE_PIPE": str(endpoints.engine_pipe)})
    children.wait_ready("server", f"{endpoints.server}/healthz")


def _replay(children: Children, plan: Plan, endpoints: Endpoints, console: Console) -> None:
    module = ["demo.clients", plan.to_json(), "--server", f"{endpoints.server}/v1", "--otlp", endpoints.otlp]
    clients = children.start("clients", module, {"LEGATO_CLIENT_HASH_KEY": secrets.token_hex(16)}, piped=True)
    assert clients.stdout is not None
    show(_checked(children, clients), console, plan.duration_s())
    children.wait("clients")
    with console.status("waiting for the last spans"):
        # On SIGTERM the server flushes its spans before it exits.
        children.stop("server")
        children.check()
    with console.status("attributing the stalls to causes"):
        _await_verdicts(endpoints)


def _fill_past(endpoints: Endpoints, console: Console, incident: str) -> None:
    """Store the demo's past and print `legato slo`. This runs after the report, so that the report covers only the replay."""
    made = placements(time.time_ns(), incident)
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task("storing recordings dated over the last two weeks", total=len(made))
        send(endpoints.otlp, made, lambda done: progress.update(task, completed=done))
    with console.status("attributing their stalls to causes and computing the rollups"):
        _await(endpoints, _ATTRIBUTED, _PAST_S_MAX)
        _await(endpoints, _ROLLED_UP, _PAST_S_MAX)
    _legato("slo", endpoints=endpoints, console=console)
    services = ", ".join(sorted({each.service for each in made}))
    console.print(
        f"simulated past: {services} are recordings dated over the last two weeks; the other services ran just now", soft_wrap=True
    )


def _await_verdicts(endpoints: Endpoints) -> None:
    """Wait until attribution has processed all received streams, for at most 20 s."""
    _await(endpoints, _ATTRIBUTED, _ATTRIBUTION_S_MAX)


def _await(endpoints: Endpoints, query: str, seconds_max: float) -> None:
    reader, until = Reader(endpoints.read), time.monotonic() + seconds_max
    while time.monotonic() < until:
        # A busy store may not answer in time.
        with suppress(ReadError):
            (row,) = reader.rows(query)
            if row["done"]:
                return
        time.sleep(0.2)


def _checked(children: Children, clients: subprocess.Popen[str]) -> Iterator[str]:
    assert clients.stdout is not None
    for line in clients.stdout:
        children.check()
        yield line


def _report(plan: Plan, endpoints: Endpoints, console: Console) -> Comparison:
    """Print the reports of `legato`, the stream with the longest gap, and the comparison with the recording; return the comparison."""
    _legato("report", endpoints=endpoints, console=console)
    for row in _worst(plan, endpoints):
        _legato("stream", str(row["id"]), endpoints=endpoints, console=console)
    _legato("blame", endpoints=endpoints, console=console)
    result = compare(plan, endpoints.read)
    console.rule("stored streams compared with the recording")
    table = Table(f"{plan.vantage} vantage", "stored", "recorded", box=None, pad_edge=False)
    table.add_row("streams", str(result.streams), str(result.recorded_streams))
    table.add_row("stalls of 250 ms or more", str(result.stalls_250ms), str(result.recorded_stalls_250ms))
    table.add_row("recorded stalls without a stored gap within 5 %", str(result.recorded_gaps_250ms_missed), "")
    table.add_row("stalls with a verdict, of these with a cause", f"{result.stalls_judged}, {result.stalls_explained}", "")
    table.add_row(
        f"difference between stored and recorded gaps in ms, n={result.gaps:,}",
        f"p50 {result.gap_diff_p50_ms:.1f}  p99 {result.gap_diff_p99_ms:.1f}  max {result.gap_diff_max_ms:.1f}",
        "",
    )
    console.print(table, highlight=False)
    return result


def _worst(plan: Plan, endpoints: Endpoints) -> Sequence[Mapping[str, Any]]:
    """Return the id of the stream with the longest gap; nothing without streams, or if the store does not answer in time."""
    with suppress(ReadError):
        return Reader(endpoints.read).rows(_WORST, {"prefix": plan.response_id_prefix, "at": plan.vantage})
    return ()


def _legato(*words: str, endpoints: Endpoints, console: Console) -> None:
    """Run a `legato` command under a heading with its name. A busy machine may let one time out: the demo goes on, and says so."""
    console.rule(f"legato {' '.join(words)}")
    console.file.flush()
    command = [sys.executable, "-m", "legato_ingest", *words]
    status = subprocess.run(command, env={**os.environ, "LEGATO_READ_URL": endpoints.read}, check=False).returncode
    if status:
        console.print(f"legato {words[0]} ended with status {status}; the demo goes on", style="red", markup=False, highlight=False)


def _hint(plan: Plan, endpoints: Endpoints, console: Console) -> None:
    worst = _worst(plan, endpoints)
    legato = ".venv/bin/legato"
    elsewhere = (endpoints.read, endpoints.otlp_port) != (DEFAULT_URL, OTLP_PORT)
    console.rule("what next")
    lines = [
        f"legato serve is still running. Open {endpoints.web} in a browser: all dashboards, and each stream with its causes.",
        *(f"The stream of the replay with the longest gap: {endpoints.web}/stream/{row['id']}" for row in worst),
        "",
        "In another terminal:",
        "",
        *([f"  export LEGATO_READ_URL={endpoints.read} LEGATO_ENDPOINT={endpoints.otlp}"] if elsewhere else []),
        f"  {legato} slo               # the burn rate rules: what fires, since when, why, and the commands that show more",
        f"  {legato} blame             # the causes of the stalls; docs/runbook.md says what to do about each",
        f"  {legato} streams",
        *(f"  {legato} stream {row['id']}   # the stream of the replay with the longest gap, and its causes" for row in worst),
        f"  {legato} doctor            # checks of this installation",
        f"  curl {endpoints.read} --data 'SELECT vantage, count(), quantile(0.99)(gap_max_us) FROM streams GROUP BY vantage'",
        "",
        "The same dashboards in a Grafana with the ClickHouse plugin (dashboards/README.md describes alternatives):",
        "",
        f"  LEGATO_GRAFANA_TOKEN=… {legato} dashboards push --url http://127.0.0.1:3000 --clickhouse {endpoints.read}",
        "",
        "The server still replays: each request receives the next recorded stream, which is stored too.",
        "",
        f"""  curl -N {endpoints.server}/v1/chat/completions --data '{{"stream": true}}'""",
        "",
        "Ctrl-C ends all of it.",
    ]
    # Printed without a box, so that the lines can be copied.
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
