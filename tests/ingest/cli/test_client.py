"""Tests of the CLI's client of the read endpoint: values arrive unchanged, and every failure names the next step."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from helpers.servers.ports import free_port
from helpers.servers.reading import open_store, reading
from helpers.servers.serving import served
from legato_ingest.cli.client import Reader, ReadError, SloLimits
from legato_ingest.storage import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with the schema."""
    with open_store(tmp_path_factory.mktemp("reader") / "store") as opened:
        yield opened


@pytest.fixture(scope="module")
def reader(store: Store) -> Iterator[Reader]:
    """A reader of a real endpoint."""
    with reading(store) as url:
        yield Reader(url)


@pytest.mark.parametrize("text", ["plain", "it's", "a\\b", "tab\there\nand there\r", "ä 😀", "%(x)s", "{x:String}", "", "\\N", "\u2028"])
def test_values_arrive_unchanged(reader: Reader, text: str) -> None:
    """Alone and in lists."""
    (row,) = reader.rows("SELECT {x:String} AS x, {xs:Array(String)} AS xs, {n:UInt64} AS n", {"x": text, "xs": [text, "z"], "n": 2**40})
    assert row == {"x": text, "xs": [text, "z"], "n": 2**40}


def test_numbers_are_numbers(reader: Reader) -> None:
    """64-bit integers are exact, NULL is None, no rows are an empty list."""
    assert reader.rows("SELECT 18446744073709551615 AS a, NULL AS b, [1.5] AS c, map('x', 1) AS d") == [
        {"a": 2**64 - 1, "b": None, "c": [1.5], "d": {"x": 1}}
    ]
    assert reader.rows("SELECT 1 WHERE 0") == []


def test_no_server() -> None:
    """The message names the command that starts it."""
    port = free_port()
    with pytest.raises(ReadError, match=rf"no `legato serve` on 127\.0\.0\.1:{port}: start it with `legato serve`"):
        Reader(f"http://127.0.0.1:{port}").rows("SELECT 1")


def test_another_server() -> None:
    """A reply of another server is not read as a result."""
    with served(FastAPI()) as url, pytest.raises(ReadError, match=r"answers \(status 404\), but not as a read endpoint"):
        Reader(url).rows("SELECT 1")


def test_the_limits_are_the_servers(store: Store) -> None:
    """The settings of the server that answers; an older server without ``/slo`` gives the defaults; another server is an error."""
    with reading(store, slo_gap_ms=300, slo_first_output_ms=1500.5, stall_ms=200) as url:
        assert Reader(url).slo() == SloLimits(300, 1500.5, 200, from_server=True)
    app = FastAPI()
    with served(app) as url:
        assert Reader(url).slo() == SloLimits(400, 2000, 250, from_server=False)
        app.add_api_route("/slo", lambda: {"gap_ms": "all"})
        with pytest.raises(ReadError, match=r"answers \(status 200\), but not as a read endpoint"):
            Reader(url).slo()


def test_errors_of_the_endpoint(reader: Reader) -> None:
    """The endpoint's message, and the next step for a missing table."""
    with pytest.raises(ReadError, match=r"refused the query \(status 403\): Code: 497"):
        reader.rows("DROP TABLE streams")
    with pytest.raises(ReadError, match="`legato schema status` shows what is applied"):
        reader.rows("SELECT * FROM rollups_of_later")


def test_credentials_are_missing_or_wrong(store: Store) -> None:
    """Without a password the message says what is needed; with another one, that it is not right. It names the variable to set."""
    with reading(store, read_password="s3cret") as url:
        with pytest.raises(ReadError, match="set LEGATO_READ_USER and LEGATO_READ_PASSWORD; a token needs no user$"):
            Reader(url).rows("SELECT 1")
        with pytest.raises(ReadError, match=r"is not right: set LEGATO_READ_USER and LEGATO_READ_PASSWORD$") as raised:
            Reader(url, password="secret").rows("SELECT 1")
        assert "secret" not in str(raised.value)
        assert Reader(url, password="s3cret").rows("SELECT 1 AS one") == [{"one": 1}]


def test_urls(reader: Reader) -> None:
    """An invalid URL is rejected before any request."""
    for url in ("127.0.0.1:8123", "ftp://x", "", "http://"):
        with pytest.raises(ReadError, match="expected something like http://127.0.0.1:8123"):
            Reader(url)


def test_importing_it_is_cheap() -> None:
    """A command that reads imports neither the engine nor the driver, numpy, FastAPI or httpx."""
    code = (
        "import sys, legato_ingest.cli.read, legato_ingest.cli.report, legato_ingest.cli.streams; "
        "print([m for m in ('chdb', 'clickhouse_connect', 'numpy', 'pyarrow', 'fastapi', 'httpx') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
