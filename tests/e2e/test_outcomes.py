"""Every way in which a stream can end gives the right outcome in the store: real clients, the demo server, `legato serve`."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from demo.plan import Plan
from demo.processes import Children
from demo.run import Endpoints, start
from helpers.builders.completions import completions_server
from helpers.servers.waiting import until
from legato_ingest.cli.client import Reader

APPLICATION = pathlib.Path(__file__).with_name("application.py")
VIEW = pathlib.Path(__file__).resolve().parents[2] / "schema" / "0003_streams.sql"
PLAN = Plan(("kv",), 1.0, None, "e2e0")
# SHORT: 8 texts, then more. STALLING: 28 texts in 1.3 s, then nothing for 12 s. LONG: texts for 19 s.
SHORT, STALLING, LONG = "kv-p-000", "kv-s14-002", "kv-s00-000"
VERDICTS = """
SELECT cause, confidence, gap_us, parts['consumer'] AS held_ns, evidence, missing
FROM verdicts FINAL
WHERE trace_id IN (SELECT trace_id FROM stream_revs WHERE service_name = {service:String})
ORDER BY gap_start_us
"""
_PATIENCE_S = 120


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """`legato serve` and the demo server, on free ports."""
    folder = tmp_path_factory.mktemp("outcomes")
    chosen = Endpoints.choose_other()
    with Children(folder) as children:
        start(children, PLAN, folder, chosen)
        yield chosen
    shutil.rmtree(chosen.engine_pipe.parent, ignore_errors=True)


def _application(way: str, key: str, endpoints: Endpoints, **environ: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(APPLICATION), way, endpoints.server, endpoints.otlp, key]
    return subprocess.Popen(command, env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True)


def _rows(endpoints: Endpoints, way: str, vantage: str = "client", source: str = "streams") -> list[dict[str, Any]]:
    """The current rows of the application's stream at one vantage, found by the trace id of the client's rows."""
    trace = f"trace_id IN (SELECT trace_id FROM stream_revs WHERE service_name = 'app-{way}')"
    columns = "outcome, ended, rev, chunks, gap_open_us, gap_max_us, next_due_us, duration_ns, response_id"
    return Reader(endpoints.read).rows(f"SELECT {columns} FROM {source} WHERE vantage = '{vantage}' AND {trace}")


def _await(rows: Callable[[], list[dict[str, Any]]]) -> dict[str, Any]:
    """Wait up to 20 s until there is a row, and return the only one."""
    deadline = time.monotonic() + _PATIENCE_S
    while not (found := rows()):
        assert time.monotonic() < deadline, f"the stream was not stored within {_PATIENCE_S} s"
        time.sleep(0.1)
    (row,) = found
    return row


@pytest.mark.parametrize(
    ("way", "key", "outcome", "server_outcome"),
    [
        ("complete", SHORT, "complete", "complete"),
        ("close", LONG, "client_cancel", "client_cancel"),
        ("cancel", LONG, "client_cancel", "client_cancel"),
        ("drop", LONG, "client_cancel", "client_cancel"),
        ("drop_async", LONG, "client_cancel", "client_cancel"),
    ],
)
def test_every_end_has_its_outcome(endpoints: Endpoints, way: str, key: str, outcome: str, server_outcome: str) -> None:
    """A stream that is read to the end, closed, cancelled or dropped has the matching outcome at the client and at the server."""
    with _application(way, key, endpoints) as process:
        assert process.wait(30) == 0
    # The application has flushed, and an acknowledged stream can be queried at once.
    row = _await(lambda: _rows(endpoints, way))
    assert (row["outcome"], row["ended"]) == (outcome, True)
    assert row["response_id"] == f"chatcmpl-e2e0-{key}"
    assert _await(lambda: _rows(endpoints, way, "server"))["outcome"] == server_outcome


def test_a_time_out_is_an_open_gap(endpoints: Endpoints) -> None:
    """The outcome is `timeout`, and the time from the last text to the time-out is the open gap, here the longest gap."""
    with _application("timeout", STALLING, endpoints) as process:
        assert process.wait(30) == 0
    row = _await(lambda: _rows(endpoints, "timeout"))
    assert (row["outcome"], row["ended"]) == ("timeout", True)
    # A busy machine raises the time-out later.
    assert 600_000 <= int(str(row["gap_open_us"])) < 10_000_000
    assert row["gap_max_us"] == row["gap_open_us"]
    assert _await(lambda: _rows(endpoints, "timeout", "server"))["outcome"] == "client_cancel"


def test_a_killed_application_leaves_its_snapshot_and_is_abandoned(endpoints: Endpoints) -> None:
    """After kill -9 the last snapshot stays: `running` until the next one is 30 s overdue, `abandoned` afterwards."""
    with _application("killed", LONG, endpoints, LEGATO_SNAPSHOT_INTERVAL_MS="1000") as process:
        try:
            _await(lambda: _rows(endpoints, "killed"))
        finally:
            process.kill()
    # The server saw the socket close. On a busy machine there was another snapshot before.
    assert _await(lambda: _rows(endpoints, "killed", "server"))["outcome"] == "client_cancel"
    (row,) = _rows(endpoints, "killed")
    assert (row["outcome"], row["ended"]) == ("running", False)
    assert int(str(row["chunks"])) > 1
    assert int(str(row["next_due_us"])) == 1_000_000 * 3 ** int(str(row["rev"]))
    (later,) = _rows(endpoints, "killed", source=_view_in(seconds=60))
    assert later == {**row, "outcome": "abandoned"}


def _view_in(seconds: int) -> str:
    """The SELECT of the view `streams` with a clock that is ``seconds`` ahead."""
    text = VIEW.read_text(encoding="utf-8").split(" AS\n", 1)[1].split("\nSETTINGS", 1)[0]
    assert "now64(3)" in text
    return f"({text.replace('now64(3)', f'(now64(3) + INTERVAL {seconds} SECOND)')})"


def _verdicts(endpoints: Endpoints, service: str) -> list[dict[str, Any]]:
    """Wait up to 20 s until the service's stream has verdicts, and return them."""
    deadline = time.monotonic() + _PATIENCE_S
    while not (found := Reader(endpoints.read).rows(VERDICTS, {"service": service})):
        assert time.monotonic() < deadline, f"no verdict within {_PATIENCE_S} s"
        time.sleep(0.2)
    return found


def test_a_late_event_loop_is_charged_to_the_consumer(endpoints: Endpoints) -> None:
    """The event loop was blocked for 1 s, so data that the server sent in time was read late: no charge to the network or the server."""
    late = _longest_hold(endpoints, [])
    if int(late["held_ns"]) <= 0.9 * 1000 * int(late["gap_us"]):
        # A busy machine delays the tick that measures the lateness, but hardly twice.
        late = _longest_hold(endpoints, _verdicts(endpoints, "app-busy"))
    assert late["confidence"] == "proven" and 900_000 < int(late["gap_us"]) < 3_000_000
    assert int(late["held_ns"]) > 0.9 * 1000 * int(late["gap_us"])


def _longest_hold(endpoints: Endpoints, before: list[dict[str, Any]]) -> dict[str, Any]:
    """Run the application with the blocked loop. Return its longest gap that is charged to the consumer; ``before``: earlier verdicts."""
    with _application("busy", "kv-s11-000", endpoints) as process:
        assert process.wait(60) == 0
    until(lambda: len(_verdicts(endpoints, "app-busy")) > len(before), _PATIENCE_S)
    found = [row for row in _verdicts(endpoints, "app-busy") if row not in before]
    # A busy machine may delay any of the processes for a shorter time.
    assert {row["cause"] for row in found if int(row["gap_us"]) > 900_000} <= {"consumer", "generation"}
    # On a busy machine the loop may be late a second time, for a shorter time.
    return max((row for row in found if row["cause"] == "consumer"), key=lambda row: int(row["gap_us"]))


def test_an_application_that_sleeps_is_charged_from_its_own_record(endpoints: Endpoints) -> None:
    """`time.sleep(0.5)` after each chunk from a server without a recorder: cause consumer, proven, from the client's span alone."""
    with completions_server() as url, _application("slow", "any", replace(endpoints, server_port=urlsplit(url).port or 0)) as process:
        assert process.wait(60) == 0
    found = _verdicts(endpoints, "app-slow")
    judged = {(row["cause"], row["confidence"], *row["missing"]) for row in found}
    assert judged == {("consumer", "proven", "server", "engine")}
    assert sum(int(row["gap_us"]) for row in found) > 2_000_000
    for row in found:
        assert int(row["held_ns"]) >= 0.9 * 1000 * int(row["gap_us"]) and int(row["evidence"]["hold_us"]) >= 490_000
