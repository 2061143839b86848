"""The CLI's client of the read endpoint: values come through, and every failure says what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from helpers.servers.ports import free_port
from helpers.servers.reading import open_store, reading
from helpers.servers.serving import served
from legato_ingest.cli.client import Reader, ReadError
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
def test_values_come_through(reader: Reader, text: str) -> None:
    """Alone and in lists."""
    (row,) = reader.rows("SELECT {x:String} AS x, {xs:Array(String)} AS xs, {n:UInt64} AS n", {"x": text, "xs": [text, "z"], "n": 2**40})
    assert row == {"x": text, "xs": [text, "z"], "n": 2**40}


def test_numbers_are_numbers(reader: Reader) -> None:
    """64 bits whole, NULL as None, no rows as an empty list."""
    assert reader.rows("SELECT 18446744073709551615 AS a, NULL AS b, [1.5] AS c, map('x', 1) AS d") == [
        {"a": 2**64 - 1, "b": None, "c": [1.5], "d": {"x": 1}}
    ]
    assert reader.rows("SELECT 1 WHERE 0") == []


def test_nobody_listens() -> None:
    """The message says how to start."""
    port = free_port()
    with pytest.raises(ReadError, match=rf"no `legato serve` on 127\.0\.0\.1:{port}: start it with `legato serve`"):
        Reader(f"http://127.0.0.1:{port}").rows("SELECT 1")


def test_somebody_else_listens() -> None:
    """An answer that is not a read endpoint's is not taken for one."""
    with served(FastAPI()) as url, pytest.raises(ReadError, match=r"answers \(status 404\), but not as a read endpoint"):
        Reader(url).rows("SELECT 1")


def test_errors_of_the_endpoint(reader: Reader) -> None:
    """Its own words, and for a missing table what it means."""
    with pytest.raises(ReadError, match=r"refused the query \(status 403\): Code: 497"):
        reader.rows("DROP TABLE streams")
    with pytest.raises(ReadError, match="`legato schema status` shows what is applied"):
        reader.rows("SELECT * FROM rollups_of_later")


def test_urls(reader: Reader) -> None:
    """What is no URL is refused before anything is asked."""
    for url in ("127.0.0.1:8123", "ftp://x", "", "http://"):
        with pytest.raises(ReadError, match="expected something like http://127.0.0.1:8123"):
            Reader(url)


def test_it_is_light() -> None:
    """A command that reads imports neither the engine nor the driver, numpy, FastAPI or httpx."""
    code = (
        "import sys, legato_ingest.cli.read, legato_ingest.cli.report, legato_ingest.cli.streams; "
        "print([m for m in ('chdb', 'clickhouse_connect', 'numpy', 'pyarrow', 'fastapi', 'httpx') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
