"""A ClickHouse server as the store: the same interface as the embedded store, over HTTP, with the real clickhouse-connect."""

from __future__ import annotations

import os
import pathlib
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from helpers.builders.batches import received_spans
from helpers.builders.spans import native_span, request
from helpers.servers.clickhouse import Server, clickhouse
from helpers.servers.ports import free_port
from helpers.servers.reading import stream, streams_in
from legato_ingest.address import Address
from legato_ingest.errors import StoreRefused, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Limits
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import Settings, load
from legato_ingest.storage import ServerStore, Store, migrate, open_store
from legato_ingest.storage.retention import set_retention
from legato_ingest.storage.watermark import Watermark, now_ms

SCHEMA = pathlib.Path(__file__).resolve().parents[3] / "schema"
# A profile for other applications, of standard SQL and with numbers as JavaScript needs them.
STANDARD = (
    "join_use_nulls transform_null_in group_by_use_nulls aggregate_functions_null_for_empty cast_keep_nullable data_type_default_nullable"
    " prefer_column_name_to_alias output_format_json_quote_64bit_integers"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with clickhouse(tmp_path_factory.mktemp("server"), profile=dict.fromkeys(STANDARD.split(), "1")) as running:
        yield running


@pytest.fixture(scope="module")
def settings(server: Server) -> Settings:
    return load(store=server.store, store_password=server.password)


@pytest.fixture(scope="module")
def store(settings: Settings) -> Iterator[Store]:
    opened = open_store(settings, {"max_result_rows": 1000, "result_overflow_mode": "throw", "max_execution_time": 5})
    migrate.apply(opened, migrate.load(SCHEMA))
    yield opened
    opened.close()


def test_the_setting_chooses_the_store(store: Store, settings: Settings) -> None:
    """The URL of a server opens a `ServerStore`; migrations can be applied repeatedly."""
    assert isinstance(store, ServerStore)
    migrations = migrate.load(SCHEMA)
    assert migrate.is_current(store, migrations) and migrate.apply(store, migrations) == []
    set_retention(store, 30, 3, 400)
    set_retention(store, 0)


def test_rows_are_stored_and_read(store: Store) -> None:
    """Streams that arrived by OTLP are the same in Legato's own queries, as Arrow, and for a reader."""
    streams_in(store, [stream((20.0, 500.0)), stream()])
    assert store.select("SELECT count() FROM streams") == [(2,)]
    assert store.select_arrow("SELECT trace_id FROM streams").num_rows == 2
    assert store.query_bytes("SELECT count() FROM streams WHERE gap_max_us > {gap:UInt64}", {"gap": "400000"}) == b"1\n"
    assert store.query_bytes("SELECT 1 AS one", fmt="JSONEachRow") == b'{"one":1}\n'


def test_the_profile_of_the_user_changes_no_result(store: Store) -> None:
    """Neither of Legato's own statements nor of readers: a join gives 0, not NULL, for what it did not find."""
    joined = "SELECT toUInt64(x) AS x FROM (SELECT 1 AS a) AS one LEFT JOIN (SELECT 2 AS a, 5 AS x) AS other USING a"
    assert store.select(joined) == [(0,)] and store.query_bytes(joined, fmt="JSONEachRow") == b'{"x":0}\n'
    assert store.query_bytes("SELECT sum(number), NULL IN (NULL) FROM numbers(0)") == b"0\t\\N\n"


def test_a_reader_changes_nothing_and_has_limits(store: Store) -> None:
    """It can change neither rows nor tables, and gets no more rows than the limit."""
    for sql in ("INSERT INTO rejected (reason) VALUES ('x')", "DROP TABLE rejected", "CREATE TABLE x (a UInt8) ENGINE = Memory"):
        with pytest.raises((StoreRefused, StoreUnavailable)):
            store.query_bytes(sql)
    with pytest.raises(StoreRefused) as error:
        store.query_bytes("SELECT number FROM numbers(2000)")
    assert error.value.code == 396
    assert store.select("SELECT count() FROM rejected") == [(0,)]


def test_a_reader_of_a_tenant_sees_only_its_rows(store: Store) -> None:
    """In tables and views, by the same filters as in an embedded store."""
    body = request()
    native_span(body)
    store.insert("stream_revs", received_spans(body, tenant="shop", now_ns=10**18, limits=Limits(retention_days=0)).revs)
    for table in ("streams", "stream_revs", "default.stream_revs" if "default" in str(store._address) else "stream_revs"):  # type: ignore[attr-defined]
        assert store.query_bytes(f"SELECT DISTINCT tenant FROM {table}", tenant="shop") == b"shop\n"
        assert store.query_bytes(f"SELECT count() FROM {table}", tenant="none") == b"0\n"
    assert store.query_bytes("SELECT count() FROM system.parts", tenant="shop") == b"0\n"


def test_errors_are_permanent_or_temporary(store: Store, server: Server) -> None:
    """A wrong statement fails for good, with ClickHouse's code; an unreachable server may come back."""
    with pytest.raises(StoreRefused) as error:
        store.select("SELECT nope FROM streams")
    assert error.value.code == 47
    with pytest.raises(StoreUnavailable):
        ServerStore(Address("127.0.0.1", 1, "default", "default", False))


@pytest.mark.parametrize("off_ms", [0, -3_600_000, 3_600_000])
def test_the_clock_is_that_of_the_server(settings: Settings, monkeypatch: pytest.MonkeyPatch, off_ms: int) -> None:
    """Within the duration of a query, also on a host with a clock that is an hour off: stamps and watermarks use the same clock."""
    monkeypatch.setattr("legato_ingest.storage.server.now_ms", lambda: now_ms() + off_ms)
    opened = open_store(settings)
    before_ms, began_ms = servers_ms(opened), now_ms()
    clock_ms = opened.clock_ms()
    # On a busy machine a query takes seconds.
    most_off_ms = now_ms() - began_ms + 1000
    stamps = Watermark(0, opened.clock_ms)
    with stamps.stamp() as stamp_ms:
        pass
    after_ms = servers_ms(opened)
    for found_ms in (clock_ms, stamp_ms):
        assert before_ms - most_off_ms < found_ms < after_ms + most_off_ms
    opened.close()


def test_the_servers_clock_is_read_beside_a_long_statement(settings: Settings) -> None:
    """Heartbeats and stamps need it meanwhile. Behind the statement, half of its time would count as the way to the server."""
    opened = open_store(settings)
    statement = threading.Thread(target=opened.select, args=("SELECT sleep(3)",))
    statement.start()
    time.sleep(0.3)
    began_ms = now_ms()
    clock_ms, here_ms = opened.clock_ms(), now_ms()
    assert statement.is_alive()
    statement.join()
    most_off_ms, before_ms = here_ms - began_ms + 1000, now_ms()
    theirs_ms = servers_ms(opened)
    assert theirs_ms - now_ms() - most_off_ms < clock_ms - here_ms < theirs_ms - before_ms + most_off_ms
    opened.close()


def servers_ms(store: Store) -> int:
    """Return the server's time (Unix ms)."""
    return int(store.select("SELECT toUnixTimestamp64Milli(now64(3))")[0][0])


def test_minutes_are_rolled_up_there(store: Store, settings: Settings) -> None:
    """The statements of the rollups run unchanged."""
    body = request()
    native_span(body)
    store.insert("stream_revs", received_spans(body, tenant="rolled", now_ns=10**18, limits=Limits(retention_days=0)).revs)
    roller = RollupWorker(open_store(settings), settings, Metrics())
    assert roller.step().minutes > 0
    roller.close()
    ((streams,),) = store.select("SELECT sum(streams) FROM stream_minutes FINAL")
    assert streams == store.select("SELECT count() FROM streams")[0][0]


def test_a_rejected_insert_leaves_no_row(store: Store) -> None:
    """Rows that do not fit the table are refused completely."""
    with pytest.raises(StoreRefused):
        store.insert("rejected", pa.table({"no_such_column": [1]}))
    assert store.select("SELECT count() FROM rejected") == [(0,)]


@pytest.mark.skipif("CLICKHOUSE_URL" in os.environ, reason="the server of CLICKHOUSE_URL is not stopped")
def test_a_server_that_was_down_is_used_again(tmp_path: pathlib.Path) -> None:
    """While it is down every call fails with a temporary error. When it is up again it responds, and wrong statements fail for good."""
    port = free_port()
    with clickhouse(tmp_path / "one", port) as running:
        opened = open_store(load(store=running.store, store_password=running.password))
        opened.command("CREATE TABLE t (a UInt8) ENGINE = MergeTree ORDER BY a")
        opened.make_tenant_views()
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            opened.select("SELECT 1")
        with pytest.raises(StoreUnavailable):
            opened.query_bytes("SELECT 1", tenant="shop")
    with clickhouse(tmp_path / "one", port):
        assert opened.select("SELECT count() FROM t") == [(0,)]
        for _ in range(2):
            with pytest.raises(StoreRefused) as error:
                opened.insert("t", pa.table({"no_such_column": [1]}))
            assert error.value.code
        assert opened.query_bytes("SELECT count() FROM t", tenant="shop") == b"0\n"
        opened.close()
