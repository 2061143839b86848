"""Tests of the reading commands over a real endpoint."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from helpers.builders.spans import SECOND_NS
from helpers.dashboards.running import standing
from helpers.servers.ports import free_port
from helpers.servers.reading import open_store, reading, stream, streams_in
from legato_ingest.cli.read import register
from legato_ingest.errors import LegatoError
from legato_ingest.objectives import Objective
from legato_ingest.storage import Store
from legato_ingest.storage.objective_rows import apply

TRACE = bytes.fromhex("4bf92f3577b34da6a3ce929d0e0e4736")
AGENT = bytes.fromhex("aaaaaaaa0000000000000000000000ff")


def response(name: str, **more: Any) -> dict[str, Any]:
    """The attributes of a response."""
    return {"gen_ai.response.id": name, **more}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One stream at two vantages under one trace, one with another trace id at the gateway, an agent's trace of two streams, a cancel."""
    server, now = {"legato.stream.vantage": "server"}, time.time_ns() - 30 * SECOND_NS
    with open_store(tmp_path_factory.mktemp("cli") / "store") as opened:
        calm = stream(
            (20,) * 30 + (600,) + (20,) * 30, attributes=response("chatcmpl-1"), trace_id=TRACE, span_id=b"12345678", start_ns=now
        )
        sent = stream((20,) * 61, attributes=response("chatcmpl-1", **server), trace_id=TRACE, start_ns=now + 1_000_000)
        streams_in(opened, [calm], "shop", "boot:4026:0", 1)
        streams_in(opened, [sent], "api", "boot:4026:0", 2)
        apart = [stream(attributes=response("resp_X", **more), trace_id=bytes([7 + n]) * 16) for n, more in enumerate(({}, server))]
        streams_in(opened, apart, "apart", seed=3)
        streams_in(opened, [stream(attributes=response(name), trace_id=AGENT) for name in ("call-1", "call-2")], "agent", seed=4)
        for minutes in (130, 110, 100):
            replayed = [
                stream(attributes=response("again", **more), trace_id=bytes([minutes, n]) * 8, age_s=60.0 * minutes + 45)
                for n, more in enumerate(({}, server))
            ]
            streams_in(opened, replayed, f"{minutes} min ago", seed=6 + minutes)
        near = bytes.fromhex("aaaaaaaa1111") + bytes(10)
        cancel = stream((20,), attributes=response("c", **{"legato.stream.outcome": "client_cancel"}), trace_id=near, end_ms=900)
        streams_in(opened, [cancel], "shop", seed=5)
        for number, gaps_ms in ((21, (53.0,) * 5), (22, ())):
            standing(opened, number, gaps_ms)
        yield opened


@pytest.fixture(scope="module")
def url(store: Store) -> Iterator[str]:
    """The endpoint."""
    with reading(store) as address:
        yield address


def legato(url: str, *words: str) -> Result:
    """Run a command."""
    app = typer.Typer()
    register(app)
    return CliRunner().invoke(app, words, env={"LEGATO_READ_URL": url, "COLUMNS": "120"})


def data(url: str, *words: str) -> Any:
    """The JSON output of a command."""
    result = legato(url, *words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(url: str, *words: str) -> str:
    """The error that `main` prints in one line."""
    result = legato(url, *words)
    assert isinstance(result.exception, LegatoError)
    return str(result.exception)


def test_report(url: str) -> None:
    """The text and the JSON have the same contents."""
    page = legato(url, "report")
    assert page.exit_code == 0 and "shop · client" in page.stdout and "1 client_cancel" in page.stdout
    groups = {(g["service"], g["vantage"]): g for g in data(url, "report")["groups"]}
    assert groups["shop", "client"]["goodput"] == {"value": 0.0, "good": 0, "n": 2} and groups["api", "server"]["goodput"]["good"] == 1
    assert data(url, "report", "--gap-ms", "1000")["groups"][0]["goodput"]["value"] == 1
    assert {g["vantage"] for g in data(url, "report", "--vantage", "server", "--since", "all")["groups"]} == {"server"}
    assert "no stream matches" in legato(url, "report", "--model", "none").stdout


def test_the_limits_are_those_of_the_objective_unless_an_option_sets_them(store: Store) -> None:
    """Every view reads the objectives of the store; options take precedence; a lower stall threshold lists shorter gaps."""
    apply(store, [Objective(name="default", gap_limit_ms=700, first_output_limit_ms=300.5)])
    with reading(store, stall_ms=15) as url:
        found, given = data(url, "report"), data(url, "report", "--first-ms", "2000")
        assert {str(each["limits"]) for each in found["groups"]} == {"{'gap_ms': [700], 'first_output_ms': [300.5]}"}
        assert not any(each["goodput"]["good"] for each in found["groups"])
        assert given["groups"][0]["limits"] == {"gap_ms": [700], "first_output_ms": [2000]}
        goodput = {(each["service"], each["vantage"]): each["goodput"]["value"] for each in given["groups"]}
        assert goodput["shop", "client"] == 0.5 and goodput["api", "server"] == 1
        assert {row["good"] for row in data(url, "streams")} == {0} and {row["good"] for row in data(url, "stream", "4bf92f35")} == {0}
        assert data(url, "blame")["first_tokens"]["late"] == 6
        assert (
            len(data(url, "stream", "chatcmpl-1")[0]["stalls"]) > 50
            and "stalls of 15 ms or more" in legato(url, "stream", "chatcmpl-1").stdout
        )
        text = " ".join(legato(url, "report").stdout.split())
        assert "good: no gap above 700 ms" in text and "first output within 300 ms" in text
        apply(store, [Objective(name="api", service="a*"), Objective(name="default", gap_limit_ms=700, first_output_limit_ms=300.5)])
        groups = {(each["service"], each["vantage"]): each for each in data(url, "report")["groups"]}
        assert groups["api", "server"]["goodput"]["value"] == 1 and groups["shop", "client"]["goodput"]["value"] == 0
        assert "good: no gap above its limit" in " ".join(legato(url, "report").stdout.split())
    apply(store, [Objective(name="default")])


def test_streams(url: str) -> None:
    """Newest first, filtered, cut."""
    assert [row["service"] for row in data(url, "streams", "--stalled")] == ["shop", "shop"]
    assert [row["response_id"] for row in data(url, "streams", "--outcome", "client_cancel")] == ["c"]
    assert len(data(url, "streams")) == 7 and len(data(url, "streams", "--limit", "2")) == 2
    page = legato(url, "streams", "--limit", "2").stdout
    assert "4bf92f3577b3" in page and "There are more" in page
    assert "no stream matches" in legato(url, "streams", "--outcome", "timeout").stdout
    unmatched = legato(url, "streams", "--service", "nothing").stdout.replace("\n", " ")
    assert "no stream matches in the last hour, service nothing" in unmatched
    (row,) = data(url, "streams", "--stalled", "--vantage", "client", "--limit", "1")
    assert row["good"] == 0 and max(row["spark"]) == 600_000 and len(row["spark"]) == 16


@pytest.mark.parametrize("given", ["4bf92f3577b34da6a3ce929d0e0e4736", "4BF92F35", "4bf92f35-77b34da6", "3132333435363738", "chatcmpl-1"])
def test_a_stream_by_any_of_its_ids(url: str, given: str) -> None:
    """Trace id, its start, span id, response id."""
    rows = data(url, "stream", given)
    assert {row["vantage"] for row in rows} == {"client", "server"} and {row["service"] for row in rows} == {"shop", "api"}
    stalls = {row["vantage"]: row["stalls"] for row in rows}
    assert [stall["length_us"] for stall in stalls["client"]] == [600_000] and stalls["server"] == []
    assert {row["vantage"]: row["offset_us"] for row in rows} == {"client": 0, "server": 1_000}


def test_the_view_of_a_stream(url: str) -> None:
    """All its vantages in one view."""
    page = legato(url, "stream", "4bf92f35").stdout
    assert page.index("server · api") < page.index("client · shop") and "all vantages have one clock" in page
    assert "api: no stall of 250 ms or more" in page and "600 ms" in page


def test_a_running_stream_that_stands_still(url: str) -> None:
    """Its newest snapshot is older than its silence, which the SDK reports apart from it; no stall is not what the views say."""
    (row,) = data(url, "stream", "15" * 8)
    (stall,) = row["stalls"]
    assert stall["open"] and stall["start_us"] == row["silence"]["gap_start_us"] == 1_265_000
    assert stall["length_us"] == row["silence"]["silence_us"] >= 299_735_000
    page = legato(url, "stream", "15" * 8).stdout
    assert "client · chat: silent for 5 min" in page and ", still running: not judged yet" in page and "no stall" not in page
    assert "╌" * 40 in page and "nothing yet" in page
    waits = legato(url, "stream", "16" * 8).stdout
    assert "client · chat: silent for 5 min" in waits and "still running: waits for its first output" in waits and "no stall" not in waits
    listed = {row["trace"]: row["silence"] for row in data(url, "streams", "--since", "1d")}
    assert listed["15" * 16]["gap_start_us"] == 1_265_000 and listed["16" * 16]["gap_start_us"] == 0
    assert {trace for trace, silence in listed.items() if silence} == {"15" * 16, "16" * 16}
    assert "silent 5 min" in legato(url, "streams", "--since", "1d").stdout


def test_the_response_id_joins_vantages_of_two_traces(url: str) -> None:
    """A gateway that did not pass the trace context on."""
    for given in ("resp_X", "07070707", "08080808"):
        assert {row["vantage"] for row in data(url, "stream", given)} == {"client", "server"}


def test_a_response_id_joins_only_streams_of_the_same_minute(url: str) -> None:
    """An id that was replayed twice: three streams, each with two vantages. By response id it is the newest, and the others are named."""
    for minutes in (130, 110, 100):
        rows = data(url, "stream", f"{minutes:02x}00" * 8)
        assert sorted((row["service"], row["vantage"]) for row in rows) == [(f"{minutes} min ago", each) for each in ("client", "server")]
    result = legato(url, "stream", "again")
    assert "100 min ago" in result.stdout and "110 min ago" not in result.stdout and "130 min ago" not in result.stdout
    assert "4 earlier recordings have the id again; this is the newest stream" in result.stderr and "6e00" * 8 in result.stderr


def test_one_call_of_an_agents_trace(url: str) -> None:
    """A response id selects one stream, a trace id selects all streams of the trace."""
    assert [row["response_id"] for row in data(url, "stream", "call-2")] == ["call-2"]
    assert {row["response_id"] for row in data(url, "stream", "aaaaaaaa0000")} == {"call-1", "call-2"}


def test_ids_of_no_or_several_streams(url: str) -> None:
    """The error names the next step."""
    assert "no stream has the id 'nothing'" in refusal(url, "stream", "nothing") and "`legato streams` lists" in refusal(
        url, "stream", "0" * 32
    )
    assert "2 traces start with aaaaaaaa: aaaaaaaa00000" in refusal(url, "stream", "aaaaaaaa") and "give more digits" in refusal(
        url, "stream", "aaaaaaaa"
    )
    assert "no stream" in refusal(url, "stream", "4bf92f3") and "no stream" in refusal(url, "stream", "' OR 1=1 --")


def test_bad_options(url: str) -> None:
    """Usage errors have status 2 and name the expected form."""
    for since in ("x", "5", "5y", "-1h", "0s", "1e3s", "٣h", "99999999d"):
        result = legato(url, "report", "--since", since)
        assert result.exit_code == 2 and "write 90s, 15m" in " ".join(result.output.replace("│", "").split())
    assert legato(url, "stream").exit_code == 2 and legato(url, "report", "--gap-ms", "0").exit_code == 2


def test_no_server() -> None:
    """One line and status 1, from the real command."""
    port = free_port()
    command = [sys.executable, "-m", "legato_ingest", "report", "--url", f"http://127.0.0.1:{port}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and result.stdout == "" and "Traceback" not in result.stderr
    assert f"no `legato serve` on 127.0.0.1:{port}: start it with `legato serve`" in result.stderr


@pytest.mark.parametrize("command", ["report", "streams", "stream"])
def test_help_has_examples(command: str) -> None:
    """Each help text has examples."""
    text = legato("", command, "--help").stdout
    assert "Examples" in text and f"legato {command}" in text


def test_live_draws_alone_on_its_terminal(url: str) -> None:
    """Nothing else writes on the lines of the view. Three views, and Ctrl-C ends the command."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "legato_ingest", "live", "--service", "shop", "--url", url]
    # Not select(2): the process of the tests may have more than 1,024 files open.
    readable = select.poll()
    readable.register(leader, select.POLLIN)
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, start_new_session=True) as process:
        os.close(follower)
        until, seen, is_asked = time.monotonic() + 60, b"", False
        try:
            while process.poll() is None and time.monotonic() < until:
                if readable.poll(100):
                    with contextlib.suppress(OSError):
                        seen += os.read(leader, 65_536)
                if not is_asked and seen.count(b"no stream is stalled") >= 3:
                    process.send_signal(signal.SIGINT)
                    is_asked = True
        finally:
            process.kill()
    os.close(leader)
    assert seen.count(b"no stream is stalled") >= 3 and b"querying" not in seen, seen
    assert process.returncode == 0
