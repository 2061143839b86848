"""Conditions of a tenant's query are not evaluated on rows of other tenants: an error would show their values.

The rows of both tenants share the parts and granules of each table, as those of requests that arrive together do. A condition fails on
the rows of the bank alone, so a query of the shop succeeds if, and only if, the filter of the tenant is evaluated first.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.servers.reading import guard_of
from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import StoreError
from legato_ingest.query.sql_guard import Refused
from legato_ingest.storage import EmbeddedStore, Store

SECRET = "secret-of-the-bank"
# Each fails on a row with a `name` that is not a number.
CONDITIONS = [
    "toUInt8({name}) = 1",
    "CAST({name} AS UInt8) = 1",
    "accurateCast({name}, 'UInt8') = 1",
    "toDecimal32({name}, 2) = 1",
    "throwIf({name} = 'secret-of-the-bank') = 0",
    "intDiv(1, {name} = '1') = 1",
    "arrayExists(each -> intDiv(1, each) = 1, [{name} = '1'])",
    "(toUInt8({name}), 1) > (0, 0)",
    "toUInt8({name}) IN (SELECT 1)",
    "if({name} != '', toUInt8({name}), 1) = 1",
    "toUInt8({name}) = 1 OR {name} = 'x'",
    "{name} = '1' OR throwIf(1)",
    # ClickHouse evaluates these on the whole dictionary of a LowCardinality column.
    "toFixedString({name}, 1) = '1'",
    "base58Decode({name}) != 'x'",
    "'x' LIKE replaceOne({name}, 'secret-of-the-bank', 'ends with \\\\') OR {name} = '1'",
    "match('x', replaceOne({name}, 'secret', '(')) OR {name} = '1'",
    "replaceRegexpOne('x', 'x', replaceOne({name}, 'secret', unhex('5c39'))) != ''",
    "mapContainsKeyLike(map({name}, 1), replaceOne({name}, 'secret-of-the-bank', 'ends with \\\\')) OR {name} = '1'",
    "clamp(1, length({name}), 1) = 1",
]
SHAPES = [
    "SELECT count() FROM {table} WHERE {condition}",
    "SELECT * FROM {table} WHERE {condition} LIMIT 3",
    "SELECT tenant, count() FROM {table} WHERE tenant != '' AND {condition} GROUP BY tenant",
    "SELECT count() FROM (SELECT * FROM {table}) WHERE {condition}",
    "SELECT ok FROM (SELECT tenant, {condition} AS ok FROM {table}) WHERE ok ORDER BY tenant LIMIT 1",
    "SELECT countIf({condition}) FROM {table}",
    "SELECT count() FROM {table} GROUP BY {condition}",
    "SELECT tenant FROM {table} ORDER BY {condition} LIMIT 1",
    "SELECT tenant, row_number() OVER (PARTITION BY {condition} ORDER BY tenant) FROM {table} WHERE {condition}",
    "SELECT count() FROM {table} AS a JOIN {table} AS b USING tenant WHERE a.{condition}",
    "SELECT 1 IN (SELECT 1 FROM {table} WHERE {condition})",
    "SELECT arrayJoin([1, 2]) AS each, tenant FROM {table} WHERE {condition} AND each = 1 LIMIT 1",
    "WITH rows AS (SELECT * FROM {table} WHERE {condition}) SELECT count() FROM rows",
    "SELECT count() FROM view(SELECT * FROM {table}) WHERE {condition}",
    "SELECT count() FROM {table}_final WHERE {condition}",
]


@pytest.fixture(scope="module")
def with_shared_rows(shared_store: Store) -> Iterator[Store]:
    """The store with a table that the test makes, with each kind of index in the schema. Made once, as the views of all tables are."""
    store = shared_store
    store.command(
        "CREATE TABLE shared_rows (tenant LowCardinality(String), at DateTime64(9, 'UTC'), name String, low LowCardinality(String), "
        "INDEX name_bloom name TYPE bloom_filter(0.01), INDEX at_minmax at TYPE minmax) "
        "ENGINE = ReplacingMergeTree PARTITION BY toYYYYMMDD(at) ORDER BY (tenant, at)"
    )
    store.make_tenant_views()
    yield store
    for table in ("shared_rows", "default_tenants.shared_rows", "default_tenants.shared_rows_final"):
        store.command(f"DROP TABLE {table}")


@pytest.fixture
def shared(with_shared_rows: Store, store: Store) -> Store:
    """The tables with rows of both tenants in each part: the one that the test makes, and a real one."""
    of_tenants = f"SELECT if(number % 2, 'shop', 'bank') AS tenant, now64(9) AS at, if(number % 2, '1', '{SECRET}') AS name"
    store.command(f"INSERT INTO shared_rows {of_tenants}, name FROM numbers(100)")
    ids = "toFixedString('t', 16), toFixedString(toString(number), 8)"
    columns, values = "tenant, start_time, service_name, trace_id, span_id", f"{of_tenants}, {ids} FROM numbers(100)"
    store.command(f"INSERT INTO stream_revs ({columns}) {values}")
    return store


def leaks(store: Store, table: str, name: str) -> list[str]:
    """Return the statements of the shop that fail with the secret of the bank, or because of its rows."""
    found = []
    for shape, condition in itertools.product(SHAPES, CONDITIONS):
        asked = condition.format(name=name) if "a.{condition}" not in shape else condition.format(name=f"a.{name}")
        sql = shape.replace("a.{condition}", "{condition}").format(table=table, condition=asked)
        try:
            store.query_bytes(sql, tenant="shop")
        except StoreError as error:
            assert error.code != 47, (sql, error)
            found.append(f"{sql}: {error}")
    return found


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("shared_rows", "name"),
        ("shared_rows", "low"),
        pytest.param("stream_revs", "service_name", marks=pytest.mark.long),
        ("streams", "service_name"),
    ],
)
def test_a_condition_sees_the_rows_of_its_tenant_only(shared: Store, table: str, name: str) -> None:
    """In each place of a statement; the same statement of a reader of all tenants fails, so the conditions test something."""
    assert leaks(shared, table, name) == []
    for condition in CONDITIONS:
        with pytest.raises(StoreError):
            shared.query_bytes(f"SELECT count() FROM {table} WHERE {condition.format(name=name)}", tenant=ALL_TENANTS)
    assert re.search(SECRET, str(leaked(shared, f"SELECT count() FROM {table} WHERE toUInt8({name}) = 1")))


@pytest.mark.parametrize("table", ["shared_rows", "stream_revs", "streams"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_filter_of_a_tenant_is_a_separate_step(shared: Store, table: str, shape: str) -> None:
    """No condition is merged into the step, so none sees a row that the filter leaves out."""
    name = {"shared_rows": "low"}.get(table, "service_name")
    condition = f"toUInt8({'a.' if 'AS a' in shape else ''}{name}) = 1"
    sql = shape.replace("a.{condition}", "{condition}").format(table=table, condition=condition)
    plan = shared.query_bytes(f"EXPLAIN {sql}", tenant="shop", fmt="TabSeparatedRaw").decode()
    filters = [line.rpartition("Filter column: ")[2] for line in plan.splitlines() if "Filter column: " in line and "'shop'" in line]
    assert filters and all(re.fullmatch(r"tenant = \\?'shop\\?'", text) for text in filters), plan


def test_an_error_shows_no_value(shared: Store) -> None:
    """Not even one of the same tenant, as ClickHouse may have failed on a value of another one."""
    hidden = r"\. DB::Exception: a function failed on a constant, or on the value of a row, .*\. \([A-Z_]+\)$"
    for condition, code in (("toUInt8(concat('own-', name)) = 1", 6), ("throwIf(name = '1', 'it is 1') = 0", 395)):
        with pytest.raises(StoreError, match=f"Code: {code}{hidden}"):
            shared.query_bytes(f"SELECT count() FROM shared_rows WHERE {condition}", tenant="shop")
    with pytest.raises(StoreError, match="Unknown expression identifier `nme`"):
        shared.query_bytes("SELECT nme FROM shared_rows", tenant="shop")


def test_the_number_of_rows_read_is_not_shown(shared: Store) -> None:
    """It would show which granules an index skips, and those hold rows of all tenants."""
    shown = [b'"rows_read"' in shared.query_bytes("SELECT 1", fmt="JSON", tenant=tenant) for tenant in ("shop", ALL_TENANTS)]
    assert shown == [False, True]


def leaked(store: Store, sql: str) -> StoreError:
    """Return the error of a statement of all tenants."""
    with pytest.raises(StoreError) as raised:
        store.query_bytes(sql, tenant=ALL_TENANTS)
    return raised.value


@pytest.mark.parametrize(
    "expression",
    [
        "toFixedString(service_name, 1)",
        "base58Decode(service_name)",
        "clamp('x', service_name, 'y')",
        "mapContainsKeyLike(map('x', 'y'), service_name)",
        "mapContainsValueLike(map('x', 'y'), service_name)",
        "rowNumberInAllBlocks()",
        "repeat('x', 1000000000 * (length(service_name) - 1))",
    ],
)
def test_functions_that_fail_on_values_are_refused(shared: Store, expression: str) -> None:
    """Beside the tables of a tenant's readers, a second barrier: functions that failed on values of other tenants are not in the list."""
    with pytest.raises(Refused, match="not allowed"):
        guard_of(shared).check(f"SELECT {expression} FROM stream_revs", {}, "shop")


def test_no_column_of_a_tenants_reader_has_a_dictionary(store: Store) -> None:
    """Rows of all tenants share the dictionaries. The tables and columns are those of Legato."""
    columns = "SELECT table, name FROM system.columns WHERE database = "
    merged = f"{columns}'default_tenants' AND NOT match(table, '_(final|keyed)$') ORDER BY table, position"
    own, tenants = store.select(f"{columns}'default' ORDER BY table, position"), store.select(merged)
    assert own == tenants and len(own) > 300
    shown = "SELECT sum(position(type, 'LowCardinality')), count() > 300 FROM system.columns WHERE database = currentDatabase()"
    assert store.query_bytes(shown, tenant="shop") == b"0\t1\n"


def answer(store: Store, sql: str, tenant: str = "shop") -> str:
    """Return the result of a statement that the guard accepts."""
    statement = guard_of(store).check(sql, {}, tenant)
    return store.query_bytes(statement.sql, tenant=tenant).decode().strip()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count() FROM stream_revs FINAL",
        "SELECT count() FROM default.stream_revs AS revs FINAL WHERE revs.service_name != ''",
        "SELECT count() FROM stream_revs FINAL WHERE stream_revs.rev > 0",
        "SELECT count() FROM (SELECT 1 AS x) AS one CROSS JOIN stream_revs AS r FINAL",
        "SELECT count() FROM stream_revs AS a FINAL INNER JOIN stream_revs AS b FINAL USING (span_id)",
        "WITH merged AS (SELECT rev FROM stream_revs FINAL) SELECT count() FROM merged WHERE rev IN (SELECT rev FROM stream_revs FINAL)",
    ],
)
def test_rows_are_merged_for_a_tenant_as_for_all(store: Store, sql: str) -> None:
    """FINAL holds for the views of a tenant's readers, wherever a table stands in a statement."""
    ((at,),) = store.select("SELECT toString(now64(9))")
    for rev in (1, 2):
        values = f"'shop', '{at}', toFixedString('t', 16), toFixedString('s', 8), 'web', {rev}"
        store.command(f"INSERT INTO stream_revs (tenant, start_time, trace_id, span_id, service_name, rev) VALUES ({values})")
    assert answer(store, "SELECT count() FROM stream_revs") == "2"
    assert [answer(store, sql, tenant) for tenant in ("shop", ALL_TENANTS)] == ["1", "1"]


def test_columns_of_text_have_their_lengths(shared: Store) -> None:
    """ClickHouse reads the length of a text alone, which a dictionary does not have."""
    of_name = "countIf(service_name != ''), countIf(empty(service_name)), sum(length(service_name))"
    assert answer(shared, f"SELECT {of_name} FROM stream_revs") == "50\t0\t50"


@pytest.mark.parametrize("column", ["start_time", "received_at"])
def test_an_index_shows_no_value_by_an_error(shared: Store, column: str) -> None:
    """To find granules, ClickHouse evaluates a condition on the smallest and largest values of all tenants, where it may fail."""
    of_shop = "toFixedString('t', 16), now64(9) + INTERVAL 1 DAY, now64(3) + INTERVAL 1 DAY"
    for tenant, columns in (("shop", of_shop), ("bank", of_shop.replace("1 DAY", "2 DAY"))):
        shared.command(f"INSERT INTO stream_revs (tenant, trace_id, start_time, received_at) SELECT '{tenant}', {columns}")
    shared.command("OPTIMIZE TABLE stream_revs FINAL")
    ((own_max_s,),) = shared.select(f"SELECT toInt64(max({column})) FROM stream_revs WHERE tenant = 'shop'")
    # Overflows for a value that is more than a second after the largest one of the shop, which is none of its rows.
    asked = f"SELECT count() FROM stream_revs WHERE toInt64({column}) - {own_max_s + 1} + 9223372036 + toDecimal64(0, 9) = 5"
    assert answer(shared, asked) == answer(shared, asked.replace("stream_revs", "streams")) == "0"
    with pytest.raises(StoreError, match="407"):
        answer(shared, asked, ALL_TENANTS)
    with pytest.raises(StoreError, match="407"):
        answer(shared, asked.replace(str(own_max_s + 1), str(own_max_s - 1)))


@pytest.mark.parametrize(
    ("of_the_bank", "of_none"),
    [
        ("response_id = 'of-the-bank'", "response_id = 'of-none'"),
        ("response_id IN ('a', 'of-the-bank')", "response_id IN ('a', 'of-none')"),
        ("trace_id = CAST('of-the-bank' AS FixedString(16))", "trace_id = CAST('of-none' AS FixedString(16))"),
        ("received_at > '2025-01-01 15:00:00'", "received_at > '2025-01-01 21:00:00'"),
        ("start_time > '2025-01-01 15:00:00'", "start_time > '2025-01-01 21:00:00'"),
        ("duration_ns > 987654320", "duration_ns > 987654321"),
        ("client_port > 64999", "client_port > 65000"),
    ],
)
@pytest.mark.parametrize("table", ["stream_revs", "streams", "stream_revs FINAL"])
def test_no_index_skips_a_row_by_values_of_other_tenants(shared: Store, table: str, of_the_bank: str, of_none: str) -> None:
    """A condition that fails on each row of the shop fails whatever the bank has: no index of the rows of both skips the shop's."""
    shared.command(
        "INSERT INTO stream_revs (tenant, trace_id, start_time, received_at, response_id, duration_ns, client_port, service_name) "
        "SELECT tenant, toFixedString(if(tenant = 'bank', 'of-the-bank', 'mine'), 16), at, at, if(tenant = 'bank', 'of-the-bank', 'mine'), "
        "if(tenant = 'bank', 987654321, 1), if(tenant = 'bank', 65000, 1), 'web' "
        "FROM (SELECT arrayJoin(['bank', 'shop', 'zz']) AS tenant, "
        "toDateTime64(if(tenant = 'bank', '2025-01-01 20:00:00', '2025-01-01 10:00:00'), 3, 'UTC') AS at)"
    )
    shared.command("OPTIMIZE TABLE stream_revs FINAL")
    fails = f"SELECT count() FROM {table} WHERE throwIf(service_name != '') = 0 AND "
    failed = []
    for condition in (of_the_bank, of_none):
        # This form is not found for the primary key, so each row of the shop is read.
        with pytest.raises(StoreError) as raised:
            answer(shared, f"{fails} NOT (NOT ({condition}))")
        failed.append(str(raised.value))
    assert failed[0] == failed[1] and "395" in failed[0]
    assert outcome(shared, fails + of_the_bank) == outcome(shared, fails + of_none)


def outcome(store: Store, sql: str) -> str:
    """Return the result of a statement, or how it fails."""
    try:
        return answer(store, sql)
    except StoreError as error:
        return str(error)


@pytest.mark.parametrize(
    "own_failure", ["finalizeAggregation(CAST(service_name AS AggregateFunction(sum, UInt64))) = 1", "throwIf(service_name != '') = 0"]
)
def test_how_a_statement_fails_shows_no_key(shared: Store, own_failure: str) -> None:
    """It fails on each row of the shop, and would fail in another way on the key of the bank's row in the same granule."""
    at = "toDateTime64(if(tenant = 'bank', '2025-01-01 20:00:00', '2025-01-01 10:00:00'), 9, 'UTC')"
    shared.command(
        f"INSERT INTO stream_revs (tenant, start_time, service_name) SELECT tenant, {at}, 'web' "
        "FROM (SELECT arrayJoin(['bank', 'shop']) AS tenant)"
    )
    shared.command("OPTIMIZE TABLE stream_revs FINAL")
    failed = list[int]()
    for hour in ("15", "21"):
        at_s = f"toUnixTimestamp(toDateTime('2025-01-01 {hour}:00:00', 'UTC'))"
        overflow = f"toInt64(start_time) - {at_s} + 9223372036 + toDecimal64(0, 9) = 5"
        with pytest.raises(StoreError) as raised:
            answer(shared, f"SELECT count() FROM stream_revs WHERE {own_failure} AND {overflow}")
        # The text depends on which of the shop's rows is read first.
        failed.append(raised.value.code)
    assert failed[0] == failed[1] != 407


def test_failed_statements_of_many_tenants_leave_the_others_alone(shared: Store) -> None:
    """A client is closed after a failure, and the pool of idle ones has clients of other tenants only."""
    for number in range(40):
        assert answer(shared, "SELECT 1", f"tenant-{number}") == "1"
        with pytest.raises(StoreError):
            answer(shared, "SELECT throwIf(1)", f"tenant-{number}")
    assert answer(shared, "SELECT 1") == answer(shared, "SELECT 1", ALL_TENANTS) == "1"


def test_a_table_that_is_made_meanwhile_is_filtered(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """ClickHouse looks for the tables of a scalar subquery when its turn comes. The result is thrown away and the statement run again."""
    assert isinstance(store, EmbeddedStore)
    run, made = store._result, list[str]()

    def made_meanwhile(*arguments: Any) -> bytes:
        if not made:
            made.append("made_meanwhile")
            store.command("CREATE TABLE made_meanwhile (tenant String, x String) ENGINE = MergeTree ORDER BY x")
            store.command("INSERT INTO made_meanwhile VALUES ('bank', 'secret'), ('shop', 'own')")
            store.make_tenant_views()
        return run(*arguments)

    monkeypatch.setattr(store, "_result", made_meanwhile)
    try:
        assert store.query_bytes("SELECT 1", tenant="shop") == b"1\n"
        made.clear()
        store.command("DROP TABLE made_meanwhile")
        assert store.query_bytes("SELECT x FROM made_meanwhile", tenant="shop") == b"own\n"
    finally:
        store.command("DROP VIEW default_tenants.made_meanwhile")
        store.command("DROP VIEW default_tenants.made_meanwhile_final")
        store.command("DROP TABLE made_meanwhile")


def test_sizes_are_not_shown(shared: Store) -> None:
    """The size of a column grows with each other name in its dictionary, so it would confirm a name of another tenant."""
    shared.command("OPTIMIZE TABLE stream_revs FINAL")
    for table, sizes in (
        ("tables", "sum(total_rows) + sum(total_bytes)"),
        ("columns", "sum(data_compressed_bytes) + sum(data_uncompressed_bytes)"),
        ("data_skipping_indices", "sum(data_compressed_bytes) + count()"),
    ):
        # Parts that are small have no sizes of columns.
        asked = f"SELECT ifNull({sizes}, 0) + count() > 0 FROM system.{table} WHERE database = 'default'"
        assert (answer(shared, asked), answer(shared, asked, ALL_TENANTS)) == ("0", "1")
    names = "SELECT DISTINCT database FROM system.{} ORDER BY database"
    for table in ("tables", "columns"):
        assert "default" not in answer(shared, names.format(table)).split()
    assert "stream_revs" in answer(shared, "SHOW TABLES").split()


def test_a_copy_of_the_tables_is_not_shown(shared: Store) -> None:
    """A backup restores all rows into another database, and a server may have a restored one."""
    shared.command("CREATE DATABASE copy")
    try:
        shared.command("CREATE TABLE copy.stream_revs ENGINE = MergeTree ORDER BY tenant AS SELECT tenant FROM default.stream_revs")
        for table in ("tables", "columns"):
            sql = f"SELECT count() > 0 FROM system.{table} WHERE database = 'copy'"
            assert (answer(shared, sql), answer(shared, sql, ALL_TENANTS)) == ("0", "1"), table
        with pytest.raises((StoreError, Refused)):
            answer(shared, "SELECT count() FROM copy.stream_revs")
    finally:
        shared.command("DROP DATABASE copy SYNC")


@pytest.mark.parametrize("name", ["_part", "_partition_id", "_partition_value", "_part_offset", "_block_number"])
def test_parts_are_not_shown(shared: Store, name: str) -> None:
    """A condition on them is evaluated for parts without any row of the tenant."""
    for table in ("stream_revs", "streams"):
        with pytest.raises(StoreError, match="Code: 47"):
            answer(shared, f"SELECT count() FROM {table} WHERE toString({name}) = 'x'")


def test_a_plan_is_for_readers_of_all_tenants(shared: Store) -> None:
    """A plan has the number of granules that an index leaves, so it shows whether a value is in the store."""
    for explain in ("EXPLAIN", "EXPLAIN PLAN", "EXPLAIN actions = 1", "EXPLAIN indexes = 1", "EXPLAIN ESTIMATE", "EXPLAIN PIPELINE"):
        with pytest.raises(Refused, match="is not accepted"):
            answer(shared, f"{explain} SELECT count() FROM stream_revs WHERE response_id = 'x'")
    for explain in ("EXPLAIN AST", "EXPLAIN SYNTAX", "EXPLAIN QUERY TREE"):
        assert answer(shared, f"{explain} SELECT count() FROM stream_revs")
    assert "Granules" in answer(shared, "EXPLAIN SELECT count() FROM stream_revs WHERE rev < 9", ALL_TENANTS)


def test_a_table_that_is_repaired_stays_filtered(shared: Store) -> None:
    """A handle that is opened while a table is detached has the filter of the table when it is attached again."""
    shared.command("DETACH TABLE stream_revs")
    try:
        with pytest.raises(StoreError):
            shared.query_bytes("SELECT count() FROM stream_revs", tenant="shop")
        assert shared.query_bytes("SELECT 1", tenant="shop") == b"1\n"
    finally:
        shared.command("ATTACH TABLE stream_revs")
    for table in ("stream_revs", "streams"):
        assert answer(shared, f"SELECT countIf(tenant = 'bank'), countIf(tenant = 'shop') FROM {table}") == "0\t50"


def test_no_table_has_an_index_that_evaluates_a_condition(store: Store) -> None:
    """An index of type `set` evaluates the condition of a query on its values, which are those of all tenants."""
    types = {
        str(kind) for (kind,) in store.select("SELECT DISTINCT type FROM system.data_skipping_indices WHERE database = currentDatabase()")
    }
    assert types <= {"bloom_filter", "minmax"}
