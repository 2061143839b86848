"""Conditions of a tenant's query are not evaluated on rows of other tenants: an error would show their values.

The rows of both tenants share the parts and granules of each table, as those of requests that arrive together do. A condition fails on
the rows of the bank alone, so a query of the shop succeeds if, and only if, the filter of the tenant is evaluated first.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import StoreError
from legato_ingest.query.sql_guard import Guard, Refused
from legato_ingest.storage import Store

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
    "SELECT count() FROM {table} FINAL WHERE {condition}",
]


@pytest.fixture
def shared(store: Store) -> Iterator[Store]:
    """Tables with rows of both tenants in each part: one that the test makes, with each kind of index in the schema, and a real one."""
    store.command(
        "CREATE TABLE shared_rows (tenant LowCardinality(String), at DateTime64(9, 'UTC'), name String, low LowCardinality(String), "
        "INDEX name_bloom name TYPE bloom_filter(0.01), INDEX at_minmax at TYPE minmax) "
        "ENGINE = ReplacingMergeTree PARTITION BY toYYYYMMDD(at) ORDER BY (tenant, at)"
    )
    of_tenants = f"SELECT if(number % 2, 'shop', 'bank') AS tenant, now64(9) AS at, if(number % 2, '1', '{SECRET}') AS name"
    store.command(f"INSERT INTO shared_rows {of_tenants}, name FROM numbers(100)")
    ids = "toFixedString('t', 16), toFixedString(toString(number), 8)"
    columns, values = "tenant, start_time, service_name, trace_id, span_id", f"{of_tenants}, {ids} FROM numbers(100)"
    store.command(f"INSERT INTO stream_revs ({columns}) {values}")
    store.make_tenant_tables()
    yield store
    store.command("DROP TABLE shared_rows")
    store.make_tenant_tables()


def leaks(store: Store, table: str, name: str) -> list[str]:
    """Return the statements of the shop that fail with the secret of the bank, or because of its rows."""
    found = []
    for shape, condition in itertools.product(SHAPES, CONDITIONS):
        if "{table} FINAL" in shape and table == "streams":
            continue
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
    [("shared_rows", "name"), ("shared_rows", "low"), ("stream_revs", "service_name"), ("streams", "service_name")],
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
    assert filters and all(re.fullmatch(r"(materialize\(CAST\(tenant AS String\)\)|tenant) = \\?'shop\\?'", text) for text in filters), plan


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
    guard = Guard(lambda sql, parameters, tenant: shared.query_bytes(sql, parameters, "TabSeparatedRaw", tenant))
    with pytest.raises(Refused, match="not allowed"):
        guard.check(f"SELECT {expression} FROM stream_revs", {}, "shop")


def test_no_column_of_a_tenants_reader_has_a_dictionary(store: Store) -> None:
    """Rows of all tenants share the dictionaries. The tables and columns are those of Legato."""
    columns = "SELECT table, name, replaceAll(type, 'LowCardinality(', '') FROM system.columns WHERE database = "
    own, tenants = (store.select(f"{columns}'{database}' ORDER BY table, position") for database in ("default", "default_tenants"))
    assert [row[:2] for row in own] == [row[:2] for row in tenants] and len(own) > 300
    shown = b"SELECT sum(position(type, 'LowCardinality')), count() > 300 FROM system.columns WHERE database = currentDatabase()"
    assert store.query_bytes(shown.decode(), tenant="shop") == b"0\t1\n"


def test_rows_are_merged_for_a_tenant_as_for_all(store: Store) -> None:
    """FINAL holds for the tables of a tenant's readers, which have another engine."""
    row = "'shop', now64(9), toFixedString('t', 16), toFixedString('s', 8)"
    at = store.select("SELECT toString(now64(9))")[0][0]
    for rev in (1, 2):
        values = row.replace("now64(9)", f"'{at}'")
        store.command(f"INSERT INTO stream_revs (tenant, start_time, trace_id, span_id, rev) VALUES ({values}, {rev})")
    for tenant in ("shop", ALL_TENANTS):
        counts = [store.query_bytes(f"SELECT count() FROM stream_revs {final}", tenant=tenant) for final in ("", "FINAL")]
        assert counts == [b"2\n", b"1\n"]


def test_no_table_has_an_index_that_evaluates_a_condition(store: Store) -> None:
    """An index of type `set` evaluates the condition of a query on its values, which are those of all tenants."""
    types = {
        str(kind) for (kind,) in store.select("SELECT DISTINCT type FROM system.data_skipping_indices WHERE database = currentDatabase()")
    }
    assert types <= {"bloom_filter", "minmax"}
