"""The read endpoint, asked by the real clickhouse-go over HTTP in Native, which is what Grafana's data source sends."""

from __future__ import annotations

import datetime
import pathlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from helpers.platform.goclient import Answer, ask, build
from helpers.servers.reading import LIMITS, reading, stream, streams_in
from helpers.servers.serving import served
from legato_ingest.metrics import Metrics
from legato_ingest.query.app import create_app
from legato_ingest.settings import load
from legato_ingest.storage import EmbeddedStore, Store, migrate

SCHEMA = pathlib.Path(__file__).resolve().parents[3] / "schema"
# Three rows: a gauge, a value that is not known, a histogram.
SAMPLES = """
INSERT INTO node_samples
    (metric, engine_id, host, series, recorded_at, start_time, kind, monotonic, attributes, value, count, bounds, bucket_counts)
SELECT 'm', 'e', 'h', number, toDateTime64('2026-01-02 03:04:05.123456789', 9, 'UTC') + number,
    if(number = 1, NULL, toDateTime64('2026-01-02 00:00:00', 9, 'UTC')), 'gauge', number = 2, map('zone', 'ä', 'n', toString(number)),
    if(number = 1, NULL, 0.1), if(number = 2, 18446744073709551615, NULL), [0.5, inf], [1, 2]
FROM numbers(3)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The Go program."""
    return build(tmp_path_factory.mktemp("goclient"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with the schema, three streams and three samples, whose readers have two seconds."""
    opened = EmbeddedStore(tmp_path_factory.mktemp("go") / "store", {**LIMITS, "max_execution_time": 2})
    migrate.apply(opened, migrate.load(SCHEMA))
    streams_in(opened, [stream(), stream((20, 700, 20)), stream()])
    opened.command(SAMPLES)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def url(store: Store) -> Iterator[str]:
    """The endpoint, with room for a dashboard's twenty questions."""
    with reading(store, queries_max=10) as address:
        yield address


@pytest.fixture(scope="module", params=[("none",), ("gzip",), ("gzip", "-ask")], ids=["plain", "gzip", "gzip asked for"])
def said(request: pytest.FixtureRequest, program: pathlib.Path, url: str) -> dict[str, Answer]:
    """All answers, by check: without compression, and with gzip as the data source and as ClickHouse's own documents have it."""
    return ask(program, url, "-compression", *request.param)


def rows(answer: Answer) -> list[dict[str, Any]]:
    """The rows of an answer that is no error."""
    assert "error" not in answer, answer["error"]
    return [dict(zip(answer["columns"], row, strict=True)) for row in answer.get("rows", [])]


def test_it_connects(said: dict[str, Answer], store: Store) -> None:
    """The driver's hello and ping, from its own interface and from database/sql."""
    facts = said["server"]["facts"]
    ((version, timezone),) = store.select("SELECT version(), timezone()")
    assert (facts["name"], facts["revision"], facts["timezone"]) == ("legato", 0, timezone)
    assert version.startswith(facts["version"])
    assert said["database_sql"]["facts"] == {"streams": 3}


NUMBERS = {
    "u8": 255, "u16": 65_535, "u32": 2**32 - 1, "u64": 2**64 - 1, "i64": -(2**63), "i8": -7, "f32": 1.5, "f64": 0.1,
    "no_number": "NaN", "endless": "-Inf", "yes": True, "money": "123.45",
}  # fmt: skip
TEXTS = {
    "text": "ä 😀", "fixed": "ab\0\0", "bytes": "hex:00ff80", "word": "lc", "choice": "b", "id": "61f0c404-5cb3-11e7-907b-a6006ad3dba0",
}  # fmt: skip
TIMES = {
    "day": "2026-01-02T00:00:00Z", "second": "2026-01-02T03:04:05Z", "milli": "2026-01-02T03:04:05.678Z",
    "nano": "2026-01-02T03:04:05.123456789Z", "there": "2026-01-01T18:04:05Z",
}  # fmt: skip
NULLABLE = {"none": None, "some": 7, "unknown": None, "word": None, "time": "2026-01-02T03:04:05Z"}
CONTAINERS = {
    "some": [1, 2], "empty": [], "small": [1, 255], "words": ["a", "b", "a"], "counts": {"x": -1}, "texts": {"k": "v"}, "pair": ["a", 1],
}  # fmt: skip


@pytest.mark.parametrize(
    ("check", "row"),
    [("numbers", NUMBERS), ("texts", TEXTS), ("times", TIMES), ("nullable", NULLABLE), ("containers", CONTAINERS)],
)
def test_each_type_comes_through(said: dict[str, Answer], check: str, row: dict[str, Any]) -> None:
    """Whole 64 bits, nanoseconds, NULL, NaN, bytes that are no text, empty arrays, maps."""
    assert rows(said[check]) == [row]


@pytest.mark.parametrize(
    ("check", "sql"),
    [
        ("streams", "SELECT * {} FROM streams ORDER BY start_time, span_id LIMIT 5"),
        ("samples", "SELECT * {} FROM node_samples ORDER BY recorded_at LIMIT 5"),
    ],
)
def test_rows_are_the_stores(said: dict[str, Answer], store: Store, check: str, sql: str) -> None:
    """Every column of every stream and sample is what the store holds, times to the nanosecond."""
    answer = said[check]
    times = [name for name, kind in zip(answer["columns"], answer["types"], strict=True) if "DateTime64" in kind]
    exact = ", ".join(f"toUnixTimestamp64Nano(toDateTime64({name}, 9, 'UTC')) AS {name}_ns" for name in times)
    known = store.select(sql.format(f"EXCEPT ({', '.join(times)}), {exact}"))
    kept = [name for name in answer["columns"] if name not in times]
    assert len(known) == len(rows(answer)) == 3
    for told, held in zip(rows(answer), known, strict=True):
        assert [told[name] for name in kept] == [_plain(value) for value in held[: len(kept)]]
        assert [told[name] and _ns(told[name]) for name in times] == list(held[len(kept) :])


def _plain(value: Any) -> Any:
    """A value of the store as the program prints it: bytes as text where they are, endless numbers as Go writes them."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return f"hex:{value.hex()}"
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return "+Inf" if value == float("inf") else value


def _ns(text: str) -> int:
    """Nanoseconds since 1970 of a time as Go writes it."""
    second = datetime.datetime.fromisoformat(text[:19] + "+00:00")
    return int(second.timestamp()) * 10**9 + int(text[20:-1].ljust(9, "0"))


def test_every_table_can_be_read(said: dict[str, Answer], store: Store) -> None:
    """All columns of all tables and views of the schema decode, with rows and without."""
    names = {row[0] for row in store.select("SHOW TABLES")}
    known = {name: len(store.select(f"SELECT * FROM {name} LIMIT 5")) for name in names}
    assert said["tables"]["facts"] == known
    assert known["streams"] == known["node_samples"] == 3 and 0 in known.values()


def test_results_without_rows_and_with_many(said: dict[str, Answer]) -> None:
    """Nothing is no error; 100,000 rows in several blocks are all there and right."""
    assert rows(said["empty"]) == []
    assert said["big"]["facts"] == {"rows": 100_000, "sum": sum(range(100_000)), "letters": 488_890}


@pytest.mark.parametrize(
    ("check", "code", "status"),
    [
        ("syntax", 62, 400), ("several", 62, 400), ("no_table", 60, 404), ("no_column", 47, 404), ("rows_limit", 396, 500),
        ("time_limit", 159, 500), ("insert", 497, 403), ("create", 497, 403), ("set", 497, 403), ("url", 497, 403), ("file", 497, 403),
        ("outfile", 497, 403),
    ],
)  # fmt: skip
def test_errors_are_the_drivers(said: dict[str, Answer], check: str, code: int, status: int) -> None:
    """Code, status and words reach the caller, marked as the data source's own."""
    answer = said[check]
    assert (answer["code"], answer["status"]) == (code, status)
    assert "DB::Exception" in answer["error"] and not answer.get("rows")


def test_an_error_leaves_nothing_behind(said: dict[str, Answer]) -> None:
    """The next answer is clean."""
    assert rows(said["after_errors"]) == [{"word": "clean"}]


def test_nothing_was_written(said: dict[str, Answer], store: Store) -> None:
    """No way that the driver has of sending rows is taken, and no file appears."""
    for check in ("insert_batch", "external"):
        assert said[check]["status"] in (400, 403, 415), said[check]
    assert store.select("SELECT count() FROM schema_migrations WHERE number = 9 AND name = 'x'") == [(0,)]
    assert store.select("EXISTS TABLE t") == [(0,)]
    assert not pathlib.Path("/tmp/legato-goclient").exists()


def test_values_are_bound(said: dict[str, Answer]) -> None:
    """By the server as parameters, and by the driver into the text."""
    bound = {"text": "it's ä", "n": 2**63, "words": ["a", "b'c"], "time": "2026-01-02T03:04:05.678Z"}
    assert rows(said["bound"]) == [bound]
    assert rows(said["written_in"]) == [{"text": "it's \\ ä", "n": 2**63}]


def test_twenty_questions_at_once(said: dict[str, Answer]) -> None:
    """Each gets its own answer where there is room for them."""
    assert said["concurrent"]["facts"] == {"right": 20, "refused": {}}


class Watched:
    """An app, and how its answers were encoded."""

    def __init__(self, app: Any) -> None:
        self._app, self.encodings = app, set[str]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Hand on, and look at the headers of each answer."""

        async def seen(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.encodings.add(dict(message["headers"]).get(b"content-encoding", b"").decode())
            await send(message)

        await self._app(scope, receive, seen)


@pytest.mark.parametrize(("flags", "encodings"), [(("none",), {""}), (("gzip",), {""}), (("gzip", "-ask"), {"gzip"})])
def test_gzip_is_sent_to_who_asks(program: pathlib.Path, store: Store, flags: tuple[str, ...], encodings: set[str]) -> None:
    """As ClickHouse does: to a client that takes it and says enable_http_compression=1, and to no other."""
    app = Watched(create_app(load(), store, Metrics()))
    with served(app) as address:
        answers = ask(program, address, "-compression", *flags, "-only", "server,big")
    assert answers["big"]["facts"]["rows"] == 100_000 and app.encodings == encodings


def test_beyond_the_room_questions_are_told_to_come_back(program: pathlib.Path, store: Store) -> None:
    """Two run and two wait; of twenty, those that get no answer are told 503 with ClickHouse's code for it, and no answer is wrong."""
    with reading(store, queries_max=2, queries_waiting_max=2) as address:
        answer = ask(program, address, "-only", "concurrent")["concurrent"]
    right, refused = answer["facts"]["right"], answer["facts"]["refused"]
    # How many it are depends on how fast they come: the exact bound is held by test_read.
    assert right >= 1 and refused == ({"503": 20 - right} if right < 20 else {})
    assert right == 20 or answer["code"] == 202


def test_clickhouses_own_compression_is_refused(program: pathlib.Path, url: str) -> None:
    """In words; clickhouse-go, which decompresses errors too, shows the status alone."""
    for method in ("lz4", "zstd"):
        assert ask(program, url, "-compression", method, "-only", "server")["server"]["status"] == 400
    reply = httpx.post(url, params={"compress": "1"}, content="SELECT 1")
    assert reply.status_code == 400 and "use gzip or no compression" in reply.text
    assert httpx.post(url, params={"compress": "0"}, content="SELECT 1").text == "1\n"
