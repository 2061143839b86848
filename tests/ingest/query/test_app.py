"""Tests of the read endpoint with the real clickhouse-connect client, with plain HTTP, and with requests that must be refused."""

from __future__ import annotations

import datetime
import gzip
import json
import pathlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import clickhouse_connect
import httpx
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError

from helpers.servers.reading import open_store, read_app, reading, stream, streams_in
from helpers.servers.serving import served
from helpers.servers.waiting import until
from legato_ingest.errors import BadRequest, QueryEnded, StoreError
from legato_ingest.metrics import Metrics
from legato_ingest.query.app import create_app
from legato_ingest.query.reads import Reads
from legato_ingest.settings import load
from legato_ingest.storage import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with the schema and three streams."""
    with open_store(tmp_path_factory.mktemp("read") / "store") as opened:
        streams_in(opened, [stream(), stream((20, 700, 20)), stream()])
        yield opened


@pytest.fixture(scope="module")
def url(store: Store) -> Iterator[str]:
    """The endpoint on a real port."""
    with reading(store) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Client]:
    """The real driver, with its handshake and compression."""
    port = int(url.rsplit(":", 1)[1])
    with clickhouse_connect.get_client(host="127.0.0.1", port=port) as opened:
        yield opened


def get(url: str, query: str = "", **more: Any) -> httpx.Response:
    """One plain GET."""
    return httpx.get(url, params={"query": query, **more.pop("params", {})}, timeout=30, **more)


def test_the_driver_reads_native_types(client: Client) -> None:
    """Every type in the schema, and related types, as Python values."""
    sql = (
        "SELECT 1::UInt8, -1::Int64, 1.5::Float32, 'ä'::String, 'ab'::FixedString(2), NULL::Nullable(UInt32), [1, 2]::Array(UInt32), "
        "true, ('x', 1), map('a', 1), 'lc'::LowCardinality(String), toDateTime64('2026-01-02 03:04:05.123456', 6, 'UTC'), "
        "['a', 'b']::Array(LowCardinality(String)), toUUID('00000000-0000-0000-0000-000000000001')"
    )
    (row,) = client.query(sql).result_rows
    assert row[:7] == (1, -1, 1.5, "ä", b"ab", None, [1, 2])
    assert row[7:11] == (True, ("x", 1), {"a": 1}, "lc")
    assert row[11].replace(tzinfo=None) == datetime.datetime(2026, 1, 2, 3, 4, 5, 123456) and row[12] == ["a", "b"]


def test_the_driver_reads_the_view(client: Client) -> None:
    """Streams as rows, as Arrow, and as columns of a LIMIT 0 query."""
    assert client.command("SELECT count() FROM streams") == 3
    arrow = client.query_arrow("SELECT model, gap_max_us, dt_us FROM streams ORDER BY gap_max_us DESC")
    assert arrow.num_rows == 3 and arrow.column("gap_max_us")[0].as_py() == 700_000
    assert client.query("SELECT model, gap_max_us FROM streams LIMIT 0").column_names == ("model", "gap_max_us")
    assert len(client.query("SELECT * FROM streams").result_rows) == 3


@pytest.mark.parametrize(
    "text", ["plain", "it's", 'a "b"', "a\\b", "tab\there", "line\nbreak", "ä 😀", "%(x)s", "{x:String}", "", "\\N", "a'; DROP"]
)
def test_parameters_arrive_unchanged(client: Client, text: str) -> None:
    """The engine receives the bound value, alone and in containers."""
    row = client.query("SELECT {x:String}, {xs:Array(String)}, length({x:String})", parameters={"x": text, "xs": [text, "z"]}).result_rows[
        0
    ]
    assert row == (text, [text, "z"], len(text.encode()))


def test_parameters_of_other_types(client: Client) -> None:
    """Numbers, NULL, times, and a list so long that the driver sends a form."""
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    row = client.query(
        "SELECT {n:UInt64}, {f:Float64}, {z:Nullable(String)}, {t:DateTime('UTC')} = toDateTime('2026-01-02 03:04:05', 'UTC')",
        parameters={"n": 2**63, "f": 0.25, "z": None, "t": when},
    ).result_rows[0]
    assert row == (2**63, 0.25, None, 1)
    many = [f"value {i} ü" for i in range(2_000)]
    assert client.query("SELECT length({xs:Array(String)}), {xs:Array(String)}[2000]", parameters={"xs": many}).result_rows == [
        (2_000, many[-1])
    ]


def test_the_drivers_errors_are_clickhouses(client: Client) -> None:
    """ClickHouse's codes and messages reach the caller."""
    for sql, code in (("SELECT nope", 47), ("SELECT FROM WHERE", 62), ("SELECT * FROM nowhere", 60), ("SELECT file('/etc/hostname')", 497)):
        with pytest.raises(DatabaseError) as raised:
            client.query(sql)
        assert raised.value.code == code


def test_the_driver_cannot_write(client: Client, store: Store) -> None:
    """It can change no rows, tables or settings."""
    attempts: list[Callable[[], object]] = [
        lambda: client.insert("schema_migrations", [[9, "x", "y"]], column_names=["number", "name", "sha256"]),
        lambda: client.command("DROP TABLE stream_revs"),
        lambda: client.command("SET readonly = 0"),
        lambda: client.raw_insert("schema_migrations", ["number"], b"1\n", fmt="CSV"),
    ]
    before = store.select("SELECT count() FROM schema_migrations")
    for attempt in attempts:
        with pytest.raises(DatabaseError):
            attempt()
    assert store.select("SELECT count() FROM schema_migrations") == before


def test_settings_of_a_request_are_ignored(url: str) -> None:
    """A reader cannot raise limits, allow writing or choose file paths."""
    lifted = {"readonly": "0", "max_result_rows": "0", "max_execution_time": "0", "allow_ddl": "1", "session_id": "s", "user": "x"}
    assert get(url, "SELECT getSetting('readonly')", params=lifted).status_code == 403
    assert get(url, "SELECT value FROM system.settings WHERE name = 'readonly'", params=lifted).text == "1\n"
    reply = get(url, "SELECT number FROM numbers(200000)", params=lifted)
    assert reply.status_code == 500 and "Limit for result exceeded" in reply.text and reply.headers["x-clickhouse-exception-code"] == "396"
    get(url, "SELECT 'what the failed query left on its handle comes out here: see the next test'")


def test_a_failed_query_does_not_affect_the_next(url: str) -> None:
    """Output of a failed query never precedes another reader's result."""
    get(url, "SELECT 'clean'")
    # The first block is written before the slow second block fails; repeated, because the engine may be faster.
    slow = "length(arrayMap(x -> x + 1, range(toUInt64(if(number > 65000, 3000, 0)))))"
    replies = []
    for _ in range(5):
        assert get(url, f"SELECT number, {slow}, throwIf(number = 90000) FROM system.numbers LIMIT 95000").status_code == 500
        replies += [get(url, "SELECT 'clean'").text for _ in range(2)]
    assert set(replies) == {"clean\n"}


def test_plain_http(url: str) -> None:
    """The requests of curl and other clients."""
    assert get(url, "SELECT 1").text == "1\n"
    assert httpx.get(f"{url}/").text == httpx.get(f"{url}/ping").text == "Ok.\n"
    assert httpx.post(url, content="SELECT 2").text == "2\n"
    assert httpx.post(url, params={"query": "SELECT number"}, content="FROM numbers(2)").text == "0\n1\n"
    assert get(url, "SELECT 1 AS a FORMAT JSONEachRow").text == '{"a":1}\n'
    assert get(url, "SELECT 1 AS a", params={"default_format": "JSONEachRow"}).json() == {"a": 1}
    assert get(url, "SELECT 1 AS a", headers={"X-ClickHouse-Format": "JSON"}).json()["data"] == [{"a": 1}]
    assert "without the progress" in get(url, "SELECT 1", headers={"X-ClickHouse-Format": "JSONEachRowWithProgress"}).text
    assert get(url, "SELECT {x:String}", params={"param_x": "a\\tb"}).text == "a\\tb\n"
    assert get(url, "SELECT 1", params={"database": "default"}).text == "1\n"


def test_replies_describe_themselves(url: str) -> None:
    """Format, time zone and query id; no header that lets another site read."""
    reply = get(url, "SELECT 1", params={"query_id": "abc-1\r\nX-Evil: 1"}, headers={"Accept-Encoding": "gzip"})
    assert reply.headers["x-clickhouse-format"] == "TabSeparated" and reply.headers["x-clickhouse-query-id"] == "abc-1X-Evil:1"
    assert reply.headers["x-clickhouse-timezone"] == get(url, "SELECT timezone()").text.strip()
    assert "content-encoding" not in reply.headers and "access-control-allow-origin" not in reply.headers
    asked = {"enable_http_compression": "1"}
    with httpx.stream("GET", url, params={"query": "SELECT 1", **asked}, headers={"Accept-Encoding": "gzip"}) as packed:
        assert packed.headers["content-encoding"] == "gzip" and gzip.decompress(b"".join(packed.iter_raw())) == b"1\n"


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("SELECT", 400, "62"), ("SELECT nope", 404, "47"), ("SELECT * FROM nope", 404, "60"), ("SELECT nope(1)", 403, "497"),
        ("SELECT {x:UInt8}", 400, "456"), ("SELECT * FROM nope.nope", 403, "497"), ("SELECT 1 INTO OUTFILE 'x'", 403, "497"),
        ("SELECT throwIf(1)", 500, "395"), ("SELECT 1 FORMAT Nope", 404, "73"), ("DROP TABLE stream_revs", 403, "497"),
        ("SELECT '" + "x" * 300_000 + "'", 400, "62"),
    ],
)  # fmt: skip
def test_errors_have_clickhouses_codes(url: str, query: str, status: int, code: str) -> None:
    """Status, header and text, the same for GET and POST."""
    replies = [httpx.post(url, content=query), *([get(url, query)] if len(query) < 10_000 else [])]
    for reply in replies:
        assert (reply.status_code, reply.headers["x-clickhouse-exception-code"]) == (status, code)
        assert reply.text.startswith(f"Code: {code}. DB::Exception") or f"Code: {code}" in reply.text
        assert "Traceback" not in reply.text


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost@evil", "[::2]", "127.0.0.1:80:80", "0.0.0.0"])
def test_a_foreign_host_is_refused(url: str, host: str) -> None:
    """A web page that rebinds its name to 127.0.0.1 gets nothing, not even a ping."""
    for path in ("/", "/ping"):
        reply = httpx.get(url + path, params={"query": "SELECT 1"}, headers={"Host": host})
        assert reply.status_code in (400, 403) and "1\n" != reply.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8123", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8123", "localhost."])
def test_loopback_names_are_accepted(url: str, host: str) -> None:
    """With and without a port."""
    assert get(url, "SELECT 1", headers={"Host": host}).text == "1\n"


def test_a_foreign_origin_is_refused(url: str) -> None:
    """A form on another site could not read the reply, but it could load the store."""
    for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example"):
        assert httpx.post(url, content="SELECT 1", headers={"Origin": origin}).status_code == 403
    assert httpx.post(url, content="SELECT 1", headers={"Origin": "http://localhost:3000"}).text == "1\n"


def test_unsupported_requests(url: str) -> None:
    """Too large, compressed, another database, files: a clear error for each."""
    assert httpx.post(url, content=b"SELECT 1 -- " + b"x" * 2**21).status_code == 413
    assert httpx.post(url, content=gzip.compress(b"SELECT 1"), headers={"Content-Encoding": "gzip"}).status_code == 415
    assert get(url, "SELECT 1", params={"database": "system"}).headers["x-clickhouse-exception-code"] == "81"
    assert get(url, "SELECT 1", params={"default_format": "a b"}).status_code == 404
    form = httpx.post(url, data={"query": "SELECT 1"}, files={"ext": ("x.csv", b"1")})
    assert form.status_code == 400 and "files" in form.text
    assert httpx.post(url, content=b"\xff\xfe", headers={"Content-Type": "multipart/form-data"}).status_code == 200
    assert httpx.put(url, content="SELECT 1").status_code == 405


def test_clickhouse_go_is_greeted_in_its_protocol(url: str) -> None:
    """Its first statement gets one Native block at revision 54460 that contains revision 0."""
    asked = {"default_format": "Native", "client_protocol_version": "54460", "database": "default", "max_execution_time": "14"}
    body = "SELECT displayName(), version(), revision(), timezone()"
    reply = httpx.post(url, params=asked, content=body).content
    assert reply.startswith(b"\x01\x00\x02\xff\xff\xff\xff\x00\x04\x01\x0ddisplayName()\x06String\x00\x06legato")
    assert b"\x0arevision()\x06UInt32\x00\x00\x00\x00\x00\x0atimezone()" in reply
    assert httpx.post(url, params=asked, content="SELECT 1").content == b"\x01\x01\x011\x05UInt8\x01"


class Slow:
    """A store with queries that block until they are released."""

    def __init__(self) -> None:
        self.go, self.asked = threading.Event(), threading.Semaphore(0)

    def query_bytes(self, sql: str, params: Any = None, fmt: str = "TabSeparated", tenant: str = "*") -> bytes:
        """Return only when released."""
        self.asked.release()
        assert self.go.wait(10)
        if "system.columns" in sql:
            return store_reply(sql)
        return b"SELECT 1\n" if "formatQuery" in sql else b"SelectWithUnionQuery\n" if "EXPLAIN" in sql else b"UTC\n"


def test_queries_are_bounded() -> None:
    """Of 12 concurrent queries two run and two wait; the others get 503 at once."""
    store, metrics = Slow(), Metrics()
    replies: list[httpx.Response] = []
    with served(read_app(load(queries_max=2, queries_waiting_max=2), store, metrics)) as url:

        def ask() -> None:
            replies.append(httpx.get(url, params={"query": "SELECT 1"}, timeout=60))

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 10
        while len(replies) < 8 and time.monotonic() < deadline:
            time.sleep(0.01)
        refused = list(replies)
        store.go.set()
        for thread in threads:
            thread.join(20)
        after = httpx.get(url, params={"query": "SELECT 1"})
    assert [(reply.status_code, reply.headers["retry-after"]) for reply in refused] == [(503, "2")] * 8
    assert sorted(reply.status_code for reply in replies) == [200] * 4 + [503] * 8 and after.status_code == 200
    assert metrics.queries.labels("busy")._value.get() == 8


def test_a_query_that_waited_too_long_is_not_run() -> None:
    """Its client has probably left; the next ones have their turn sooner."""
    store, arrived = Slow(), threading.Semaphore(0)

    def begin(tenant: str, stale_max_s: float) -> Callable[[], None]:
        arrived.release()
        return lambda: None

    settings, metrics = load(queries_max=1, query_seconds_max=1), Metrics()
    with served(create_app(settings, Reads(settings, store, metrics, begin), metrics)) as url, ThreadPoolExecutor(2) as senders:
        first = senders.submit(httpx.get, url, params={"query": "SELECT 1"}, timeout=60)
        assert store.asked.acquire(timeout=60) and arrived.acquire(timeout=10)
        second = senders.submit(httpx.get, url, params={"query": "SELECT 1"}, timeout=60)
        assert arrived.acquire(timeout=60)
        time.sleep(1.1)
        store.go.set()
        assert (first.result(20).status_code, second.result(20).status_code) == (200, 503)
        # A busy machine makes it wait for longer.
        assert second.result().headers["retry-after"] == "2" and re.search(r"waited for [1-9]\d* s", second.result().text)


def test_a_query_that_ended_the_process_of_the_store_is_not_run_again(store: Store) -> None:
    """After the second time, also with another time range, and for this tenant alone; other queries run."""
    range_of, ran = "SELECT toDateTime({0}) AS at, {1}", list[str]()

    class Ended:
        def query_bytes(self, sql: str, params: Any = None, fmt: str = "TabSeparated", tenant: str = "") -> bytes:
            if "bad" in sql and "EXPLAIN" not in sql:
                ran.append(sql)
                raise QueryEnded("Code: 159. ended", 159)
            return store.query_bytes(sql, params, fmt)

    reads = Reads(load(), Ended(), Metrics())

    def result(at: int, what: str, tenant: str = "a") -> str:
        try:
            return reads._work(range_of.format(at, what), {}, "TabSeparated", tenant).content.decode()
        except StoreError as error:
            return str(error)

    assert "ended" in result(1, "'bad'") and "ended" in result(2, "'bad'")
    assert "retry in 10 minutes" in result(1, "'bad'") and "retry in 10 minutes" in result(3, "'bad'")
    assert len(ran) == 2
    assert "ended" in result(1, "'bad'", tenant="b") and result(1, "'good'").endswith("good\n")


class Counted(Slow):
    """A store that counts the queries that run at once; they block while ``go`` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.running = self.most = 0
        self.ended: QueryEnded | None = None

    def query_bytes(self, sql: str, params: Any = None, fmt: str = "TabSeparated", tenant: str = "*") -> bytes:
        """Return only when released, or raise ``ended``."""
        if "number" not in sql or "formatQuery" in sql or "EXPLAIN" in sql:
            return store_reply(sql)
        if self.ended is not None:
            raise self.ended
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return super().query_bytes(sql, params, fmt, tenant)
        finally:
            self.running -= 1


def store_reply(sql: str) -> bytes:
    """Return what the guard asks for before a statement runs."""
    if "system.columns" in sql:
        return b"streams\tstart_time\tDateTime64(9)\t1\n"
    return b"SELECT number\n" if "formatQuery" in sql else b"SelectWithUnionQuery\n" if "EXPLAIN" in sql else b"UTC\n"


def test_a_tenant_leaves_places_to_the_others() -> None:
    """It has half of the places at most, and all but one of those that run: the other tenant's query runs at once."""
    store = Counted()
    reads = Reads(load(queries_max=3, queries_waiting_max=9), store, Metrics())

    async def check() -> list[int]:
        statuses = list[int]()

        async def ask(tenant: str, number: int) -> None:
            try:
                await reads.limited(lambda: store.query_bytes(f"SELECT number, {number}"), tenant)
                statuses.append(200)
            except BadRequest as error:
                statuses.append(error.status)

        async with anyio.create_task_group() as tasks:
            for number in range(12):
                tasks.start_soon(ask, "greedy", number)
            await anyio.wait_all_tasks_blocked()
            assert await anyio.to_thread.run_sync(until_true, lambda: store.running == 2)
            tasks.start_soon(ask, "other", 0)
            assert await anyio.to_thread.run_sync(until_true, lambda: store.running == 3)
            store.go.set()
        return statuses

    statuses = anyio.run(check)
    assert sorted(statuses) == [200] * 7 + [503] * 6


def until_true(condition: Callable[[], bool]) -> bool:
    """Wait until the condition is true, and return whether it is."""
    until(condition)
    return condition()


def test_queries_of_tenants_under_suspicion_run_alone() -> None:
    """After an end without a known cause, so that the next end has one; other tenants have all places when none of them runs."""
    store = Counted()
    reads = Reads(load(queries_max=3), store, Metrics())
    store.ended = QueryEnded("Code: 241. ended", 241, {"a", "b"}, is_alone=False)
    for each in ("a", "b"):
        with pytest.raises(QueryEnded):
            reads._work("SELECT number", {}, "TabSeparated", each)
    store.ended = None

    async def most(*tenants: str, at_once: int) -> int:
        store.most = 0
        store.go.clear()
        async with anyio.create_task_group() as tasks:
            for number, tenant in enumerate(tenants):
                tasks.start_soon(reads.run, f"SELECT number, {number}", {}, "TabSeparated", tenant)
                await anyio.wait_all_tasks_blocked()
            assert await anyio.to_thread.run_sync(until_true, lambda: store.running == at_once)
            store.go.set()
        return store.most

    assert anyio.run(partial(most, "c", "d", "e", at_once=3)) == 3
    assert anyio.run(partial(most, "a", "b", "a", "b", at_once=1)) == 1
    assert anyio.run(partial(most, "a", "c", "b", "d", "a", at_once=1)) == 1


def test_a_query_asks_for_an_insert_when_it_arrives() -> None:
    """Also while it waits for its turn; it waits for the insert when it has its turn."""
    store, events = Slow(), list[str]()

    def begin(tenant: str, stale_max_s: float) -> Callable[[], None]:
        assert (tenant, stale_max_s) == ("*", 0)
        events.append("asked")
        return lambda: events.append("waited")

    settings, metrics = load(queries_max=1), Metrics()
    with served(create_app(settings, Reads(settings, store, metrics, begin), metrics)) as url, ThreadPoolExecutor(2) as senders:
        first = senders.submit(httpx.get, url, params={"query": "SELECT 1"}, timeout=60)
        assert store.asked.acquire(timeout=60)
        second = senders.submit(httpx.get, url, params={"query": "SELECT 1"}, timeout=60)
        until(lambda: events == ["asked", "waited", "asked"])
        store.go.set()
        assert {first.result(20).status_code, second.result(20).status_code} == {200}
    assert events == ["asked", "waited", "asked", "waited"]


def test_a_large_query_counts_as_several() -> None:
    """While one of 200 KB runs, a limit of four is reached."""
    store = Slow()
    with served(read_app(load(queries_max=2, queries_waiting_max=2), store, Metrics())) as url, ThreadPoolExecutor(1) as sender:
        large = sender.submit(httpx.post, url, content=f"SELECT '{'x' * 200_000}'", timeout=60)
        assert store.asked.acquire(timeout=60)
        refused = httpx.get(url, params={"query": "SELECT 1"})
        store.go.set()
        assert refused.status_code == 503 and large.result(20).status_code != 503
        assert httpx.get(url, params={"query": "SELECT 1"}).status_code == 200


def test_concurrent_queries(url: str, client: Client) -> None:
    """Each query gets its own result."""
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        for _ in range(5):
            while (reply := get(url, f"SELECT {number}, sum(number) FROM numbers({number})")).status_code == 503:
                pass
            answers[number] = reply.text

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: f"{number}\t{number * (number - 1) // 2}\n" for number in range(12)}


def test_the_slo_of_the_server_is_returned(store: Store) -> None:
    """The limits that this server rolls up by, in ms, behind the same checks as queries."""
    with reading(store, slo_gap_ms=300, slo_first_output_ms=1500.5, stall_ms=200, read_password="a password of the readers") as url:
        reply = httpx.get(f"{url}/slo", auth=("legato", "a password of the readers"))
        denied, foreign = httpx.get(f"{url}/slo"), httpx.get(f"{url}/slo", headers={"Origin": "https://evil.example"})
    assert reply.json() == {"gap_ms": 300, "first_output_ms": 1500.5, "stall_ms": 200} and reply.headers["cache-control"] == "no-store"
    assert denied.status_code == foreign.status_code == 403 and "gap_ms" not in denied.text + foreign.text


def test_json_is_json(url: str) -> None:
    """The content type of a reply matches its format."""
    reply = get(url, "SELECT 1 AS a", params={"default_format": "JSONCompact"})
    assert reply.headers["content-type"].startswith("application/json") and json.loads(reply.text)["data"] == [[1]]


def test_nothing_is_left_on_disk(url: str, tmp_path: pathlib.Path) -> None:
    """No file is created over HTTP, with a value that once ended the statement."""
    out = tmp_path / "out"
    assert get(url, "SELECT '%(x)s'", params={"param_x": ""}).text == "%(x)s\n"
    assert get(url, "SELECT '%(x)s'", params={"param_x": f" INTO OUTFILE $${out}$$ -- "}).text == "%(x)s\n"
    assert get(url, f"SELECT 'a\u2028ShowTables b' INTO OUTFILE '{out}'").status_code == 403
    assert not out.exists()
