"""Streams in flight and stalled now, with real processes: `legato live` while a server streams, and while it is frozen."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from helpers.servers.ports import free_port
from helpers.servers.serving import Served, legato, serve_process
from legato_ingest.cli.client import Reader
from legato_ingest.reports.live import count_stalled

pytestmark = pytest.mark.serial
APPLICATION = pathlib.Path(__file__).with_name("live_application.py")
STREAMS = 5
# A stall is reported after 2 s, exported within 1 s, and shown within 5 s.
FRESH_S = 5.0


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the application until the end of the context."""
    with subprocess.Popen([sys.executable, str(APPLICATION), *arguments]) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def live(serve: Served) -> dict[str, Any]:
    """Return what `legato live --json` prints."""
    done = legato("live", "--json", environ=serve.environ)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def first(seen: Callable[[], Any], seconds: float) -> Any:
    """Return the first true result, or the last one after this time."""
    deadline = time.monotonic() + seconds
    while not (result := seen()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return result


def in_flight(state: dict[str, Any]) -> dict[tuple[str, str], int]:
    """Return the streams in flight by service and vantage."""
    return {(row["service"], row["vantage"]): int(row["in_flight"]) for row in state["in_flight"]}


def answers(url: str) -> bool:
    """Whether the server accepts requests."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url).status_code == 404
    return False


def test_a_frozen_server_is_seen_while_its_streams_run(tmp_path: pathlib.Path) -> None:
    """Five streams are in flight at both ends and none is stalled. Then the server is frozen: all five are stalled within 5 s."""
    port = free_port()
    with contextlib.ExitStack() as stack:
        serve = stack.enter_context(serve_process(tmp_path / "store"))
        server = stack.enter_context(running("server", str(port), serve.otlp))
        assert first(lambda: answers(f"http://127.0.0.1:{port}/"), 30)
        stack.enter_context(running("client", f"http://127.0.0.1:{port}/v1", serve.otlp, str(STREAMS)))
        both = {("live-client", "client"): STREAMS, ("live-server", "server"): STREAMS}
        assert first(lambda: in_flight(live(serve)) == both, 20), live(serve)
        assert live(serve)["stalled"] == []
        os.kill(server.pid, signal.SIGSTOP)
        frozen, reader = time.monotonic(), Reader(serve.read)
        # Not by the command: on a busy machine it takes seconds to start.
        assert first(lambda: count_stalled(reader.rows) == STREAMS, 20)
        took_s = time.monotonic() - frozen
        stalled = live(serve)["stalled"]
        shown_s = time.monotonic() - frozen
        assert len(stalled) == STREAMS and {row["vantage"] for row in stalled} == {"client"} and {row["model"] for row in stalled} == {"m"}
        assert took_s < FRESH_S and all(2e6 <= int(row["silence_us"]) < 1e6 * (shown_s + 1) for row in stalled)
        shown = legato("live", "--once", environ=serve.environ).stdout
        assert "Stalled now" in shown and "live-client" in shown and "not judged yet" in shown
