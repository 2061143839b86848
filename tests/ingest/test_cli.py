"""The command: JSON for programs, one line for what goes wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner

from helpers.ports import free_port
from helpers.serving import legato, served
from helpers.spans import native_span, request
from legato_ingest import read
from legato_ingest.cli import app
from legato_ingest.cli_read import seconds
from legato_ingest.metrics import Metrics
from legato_ingest.rows import Limits, rows_of
from legato_ingest.settings import load
from legato_ingest.store import Store

TRACE = bytes.fromhex("00f067aa0ba902b74bf92f3577b34da6")


@pytest.fixture(scope="module")
def url(shared_store: Store) -> Iterator[str]:
    """The read door."""
    with served(read.create_app(load(), shared_store, Metrics())) as address:
        yield address


def run(url: str, *arguments: str) -> str:
    """The output of a command that must succeed."""
    result = CliRunner().invoke(app, arguments, env={"LEGATO_READ_URL": url, "COLUMNS": "100"})
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def put(store: Store) -> None:
    """One stream."""
    body = request()
    native_span(body, trace_id=TRACE)
    store.insert("stream_revs", rows_of(body, tenant="", received_at_ns=time.time_ns(), limits=Limits()).revs)


def test_an_empty_store_says_what_to_do(store: Store, url: str) -> None:
    """And in JSON it is an empty list."""
    assert "No streams" in run(url, "report") and "No streams" in run(url, "streams")
    assert json.loads(run(url, "report", "--json")) == [] == json.loads(run(url, "streams", "--json"))


def test_json_is_for_programs(store: Store, url: str) -> None:
    """Each command prints one JSON value with whole numbers, nothing beside it."""
    put(store)
    (row,) = json.loads(run(url, "report", "--json"))
    assert (row["streams"], row["goodput"], row["gap_p99_of_p99_us"], row["model"]) == (1, 1.0, 25_000, "model-a")
    (listed,) = json.loads(run(url, "streams", "--json"))
    assert (listed["trace"], listed["chunks"], listed["ttft_us"]) == (TRACE.hex(), 20, 425_000)
    (one,) = json.loads(run(url, "stream", TRACE.hex()[:8], "--json"))
    assert (one["duration_ns"], one["stalls"], len(one["dt_us"])) == (2_000_000_000, [], 20)


def test_tables_are_for_people(store: Store, url: str) -> None:
    """With names, units and n."""
    put(store)
    page = run(url, "report", "--since", "1h", "--model", "model-a")
    assert "client · test · model-a" in page and "100.0 % (n=1)" in page
    assert TRACE.hex()[:16] in run(url, "streams", "--limit", "1")
    assert TRACE.hex() in run(url, "stream", TRACE.hex())


@pytest.mark.parametrize(("text", "value"), [("90s", 90), ("15m", 900), ("6h", 21_600), ("2d", 172_800), ("1w", 604_800), (" 1m ", 60)])
def test_a_span_of_time(text: str, value: int) -> None:
    """A number and a unit."""
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "5", "m", "-5m", "1.5h", "1y", "5 m", "9999999999s", "٣m x"])
def test_no_span_of_time_is_a_usage_error(text: str) -> None:
    """It says how to write one."""
    with pytest.raises(typer.BadParameter, match="like 15m"):
        seconds(text)


@pytest.mark.parametrize(
    "command", [["report", "--since", "soon"], ["streams", "--since", "1y"], ["streams", "--limit", "0"], ["stream"], ["nosuch"]]
)
def test_wrong_options_are_status_2(url: str, command: list[str]) -> None:
    """As typer does, without a trace of Python."""
    result = CliRunner().invoke(app, command, env={"LEGATO_READ_URL": url})
    assert result.exit_code == 2 and "Traceback" not in result.output


def test_no_command_shows_the_help() -> None:
    """All commands are listed."""
    output = CliRunner().invoke(app, []).output
    assert all(word in output for word in ("serve", "schema", "report", "streams", "stream"))


def test_nothing_listening_is_one_line() -> None:
    """With what to start, and status 1."""
    result = legato("report", environ={"LEGATO_READ_URL": f"http://127.0.0.1:{free_port()}"})
    assert result.returncode == 1 and not result.stdout
    assert "nothing answers at" in result.stderr and "legato serve" in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_an_unknown_stream_is_one_line(store: Store, url: str) -> None:
    """Status 1, no trace of Python."""
    result = legato("stream", "nosuch", environ={"LEGATO_READ_URL": url})
    assert result.returncode == 1 and "no stream has" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(("environ", "words"), [
    ({"LEGATO_STORE": "http://x"}, "LEGATO_STORE"), ({"LEGATO_OTLP_PORT": "x"}, "LEGATO_OTLP_PORT"),
    ({"LEGATO_HOST": "0.0.0.0"}, "loopback only"),
])  # fmt: skip
def test_serve_refuses_wrong_settings_in_one_line(environ: dict[str, str], words: str) -> None:
    """Before any door opens."""
    result = legato("serve", environ={"LEGATO_STORE": "chdb:///tmp/never", **environ})
    assert result.returncode == 1 and words in result.stderr and "Traceback" not in result.stderr
