"""Tests of the read endpoint with the real clickhouse-connect: types, compressions, limits, concurrency."""

from __future__ import annotations

import datetime
import decimal
import ipaddress
import math
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError, ProgrammingError

from helpers.servers.reading import LIMITS, open_store, read_app, reading, stream, streams_in
from helpers.servers.serving import served
from legato_ingest.metrics import Metrics
from legato_ingest.settings import load
from legato_ingest.storage import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with the schema and three streams."""
    with open_store(tmp_path_factory.mktemp("connect") / "store") as opened:
        streams_in(opened, [stream(), stream((20, 700, 20)), stream()])
        yield opened


@pytest.fixture(scope="module")
def url(store: Store) -> Iterator[str]:
    """The endpoint on a real port."""
    with reading(store, queries_max=8) as address:
        yield address


def connected(url: str, **options: Any) -> Client:
    """A client of the endpoint, after the driver's handshake."""
    return clickhouse_connect.get_client(host="127.0.0.1", port=int(url.rsplit(":", 1)[1]), **options)


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Client]:
    """The driver with its defaults."""
    with connected(url) as opened:
        yield opened


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("65535::UInt16", 65_535), ("18446744073709551615::UInt64", 2**64 - 1), ("-9223372036854775808::Int64", -(2**63)),
        ("-7::Int8", -7), ("0.1::Float64", 0.1), ("-inf", -math.inf), ("false", False),
        ("'123.4500'::Decimal(18, 4)", decimal.Decimal("123.4500")), ("'ab'::FixedString(4)", b"ab\0\0"),
        ("'b'::Enum8('a' = 1, 'b' = 2)", "b"), ("NULL::LowCardinality(Nullable(String))", None),
        ("toUUID('61f0c404-5cb3-11e7-907b-a6006ad3dba0')", uuid.UUID("61f0c404-5cb3-11e7-907b-a6006ad3dba0")),
        ("'10.0.0.1'::IPv4", ipaddress.IPv4Address("10.0.0.1")), ("'2026-01-02'::Date", datetime.date(2026, 1, 2)),
        ("map('x', -1)::Map(LowCardinality(String), Int64)", {"x": -1}), ("[]::Array(UInt64)", []), ("[1, 255]::Array(UInt8)", [1, 255]),
        ("toUnixTimestamp64Nano(toDateTime64('2026-01-02 03:04:05.123456789', 9, 'UTC'))", 1_767_323_045_123_456_789),
    ],
)  # fmt: skip
def test_each_type_arrives_unchanged(client: Client, sql: str, value: object) -> None:
    """As the driver's Python value, with exactly its type."""
    found = client.query(f"SELECT {sql}").result_rows[0][0]
    assert found == value and type(found) is type(value)


def test_nan_is_not_null(client: Client) -> None:
    """NaN stays NaN, and is not NULL."""
    ((number, null),) = client.query("SELECT nan, NULL::Nullable(Float64)").result_rows
    assert math.isnan(number) and null is None


@pytest.mark.parametrize(
    ("kind", "precision_us"), [("DateTime('UTC')", 1_000_000), ("DateTime64(3, 'UTC')", 1_000), ("DateTime64(9, 'UTC')", 1)]
)
def test_times_keep_their_precision(client: Client, kind: str, precision_us: int) -> None:
    """To the precision of Python's datetime."""
    sql = f"SELECT toDateTime64('2026-01-02 03:04:05.123456789', 9, 'UTC')::{kind}"
    found = client.query(sql, query_tz="UTC").result_rows[0][0]
    assert found.replace(tzinfo=None) == datetime.datetime(2026, 1, 2, 3, 4, 5, 123_456 // precision_us * precision_us)


def test_the_handshake_reports_the_server(client: Client, store: Store) -> None:
    """Version and time zone are the engine's, and a ping is answered."""
    ((version,),) = store.select("SELECT version()")
    assert client.server_version == version and client.ping()


@pytest.mark.parametrize("asked", [True, False, "gzip", "lz4", "zstd", "deflate"], ids=str)
def test_each_compression_of_the_driver(url: str, asked: bool | str) -> None:
    """The result is the same; it is uncompressed, as the driver sees read-only settings and does not send enable_http_compression."""
    with connected(url, compress=asked) as opened:
        assert opened.query("SELECT sum(number), concat('äääää', 'ääää') FROM numbers(100000)").result_rows == [(4_999_950_000, "ä" * 9)]


def test_errors_are_read_in_each_compression(url: str) -> None:
    """Errors are uncompressed for every requested compression."""
    for asked in (True, False, "gzip", "lz4"):
        with connected(url, compress=asked) as opened, pytest.raises(DatabaseError) as raised:
            opened.query("SELECT * FROM nowhere")
        assert raised.value.code == 60


def test_many_rows_in_each_way_of_reading(client: Client) -> None:
    """Blocks, columns, Arrow, a data frame, an array and raw bytes hold the same 100,000 rows."""
    sql, total = "SELECT number, toString(number % 7) AS text FROM numbers(100000)", sum(range(100_000))
    with client.query_column_block_stream(sql) as blocks:
        sizes = [(len(numbers), sum(numbers)) for numbers, _ in blocks]
    assert len(sizes) > 1 and [sum(column) for column in zip(*sizes, strict=True)] == [100_000, total]
    assert sum(row[0] for row in client.query(sql).result_rows) == total
    arrow = client.query_arrow(sql)
    assert arrow.num_rows == 100_000 and arrow.column("text")[13].as_py() == "6"
    frame = client.query_df(sql)
    assert len(frame) == 100_000 and int(frame["number"].sum()) == total
    assert int(client.query_np("SELECT number FROM numbers(100000)").sum()) == total
    assert client.raw_query(sql, fmt="TabSeparated").count(b"\n") == 100_000


def test_empty_results_in_each_way_of_reading(client: Client) -> None:
    """An empty result is no error; Arrow still has the columns."""
    sql = "SELECT model, gap_max_us FROM streams WHERE 0"
    assert client.query(sql).result_rows == [] and client.query_df(sql).empty
    assert client.query_arrow(sql).column_names == ["model", "gap_max_us"]


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT 1; SELECT 2", 62), ("SELECT 1 SETTINGS max_threads = 9", 164), ("SELECT 1 INTO OUTFILE 'x'", 497),
        ("SELECT * FROM url('http://127.0.0.1:1/', 'CSV', 'x String')", 497), ("SELECT number FROM numbers(200000)", 396),
        ("SELECT throwIf(number = 99000) FROM numbers(100000)", 395),
    ],
)  # fmt: skip
def test_errors_have_clickhouses_code(client: Client, sql: str, code: int) -> None:
    """The driver raises with ClickHouse's code, also after rows were written, and stays usable."""
    with pytest.raises(DatabaseError) as raised:
        client.query(sql)
    assert raised.value.code == code and "\n" not in str(raised.value).split("DB::Exception")[0]
    assert client.query("SELECT 'clean'").result_rows == [("clean",)]


def test_a_client_with_own_limits_is_warned(client: Client) -> None:
    """The driver sees that settings are read-only and reports it before the query; the endpoint's limits apply."""
    for setting in ("max_execution_time", "max_memory_usage", "readonly"):
        with pytest.raises(ProgrammingError, match=f"Setting {setting} is readonly"):
            client.query("SELECT 1", settings={setting: 0})
    asked = "SELECT value FROM system.settings WHERE name = 'max_execution_time'"
    assert client.query(asked).result_rows == [(str(LIMITS["max_execution_time"]),)]


def test_a_user_is_ignored_without_a_password(url: str) -> None:
    """Credentials are ignored where none are needed."""
    with connected(url, username="grafana", password="whatever") as opened:
        assert opened.query("SELECT 1").result_rows == [(1,)]


class Held:
    """A store that blocks marked statements until they are released."""

    def __init__(self, store: Store) -> None:
        self._store, self.go = store, threading.Event()

    def query_bytes(self, sql: str, params: Any = None, fmt: str = "TabSeparated", tenant: str = "*") -> bytes:
        """Return the store's result after the wait."""
        assert "'held'" not in sql or self.go.wait(30)
        return self._store.query_bytes(sql, params, fmt)


def test_too_many_queries_of_the_driver(store: Store) -> None:
    """One runs and one waits: the third of three gets a separate error at once, and the others get their results."""
    held = Held(store)
    outcomes: list[object] = []
    refused = threading.Event()
    with served(read_app(load(queries_max=1, queries_waiting_max=1), held, Metrics())) as address:
        clients = [connected(address) for _ in range(3)]

        def ask(opened: Client) -> None:
            try:
                outcomes.append(opened.query("SELECT 'held'").result_rows)
            except OperationalError as error:
                outcomes.append(error.code)
                refused.set()

        threads = [threading.Thread(target=ask, args=(opened,)) for opened in clients]
        for thread in threads:
            thread.start()
        assert refused.wait(30)
        held.go.set()
        for thread in threads:
            thread.join(30)
        for opened in clients:
            opened.close()
    assert outcomes == [202, [("held",)], [("held",)]]


def test_concurrent_clients(url: str) -> None:
    """Each gets its own results, also with one client in many threads."""
    wrong: list[object] = []

    def ask(opened: Client, number: int) -> None:
        for each in range(5):
            found = opened.query(f"SELECT {number}, {each}, sum(number) FROM numbers({number})").result_rows
            if found != [(number, each, number * (number - 1) // 2)]:
                wrong.append(found)

    with connected(url, autogenerate_session_id=False) as shared:
        clients = [connected(url) for _ in range(6)]
        threads = [threading.Thread(target=ask, args=(opened, 10 + n)) for n, opened in enumerate([*clients, *[shared] * 6])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for opened in clients:
            opened.close()
    assert not wrong and not any(thread.is_alive() for thread in threads)
