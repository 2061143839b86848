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
    yield store
    store.command("DROP TABLE shared_rows")


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


LOW = "SELECT count() FROM stream_revs WHERE "


def guard_of(store: Store) -> Guard:
    """Return a guard that parses statements in the engine of a store, as the read endpoint's does."""
    return Guard(lambda sql, parameters, tenant: store.query_bytes(sql, parameters, "TabSeparatedRaw", tenant))


@pytest.mark.parametrize(
    "condition",
    [
        "toFixedString(service_name, 1) = '1'",
        "base58Decode(service_name) = ''",
        "'x' LIKE service_name",
        "'x' NOT ILIKE concat(service_name, '')",
        "'x' REGEXP service_name",
        "match('x', (SELECT max(service_name) FROM stream_revs))",
        "arrayExists(each -> like('x', each), [service_name])",
        "'x' LIKE CAST(service_name AS LowCardinality(String))",
        "'x' LIKE CAST('String', service_name)",
        "'x' LIKE CAST('x' LIKE service_name, 'String')",
        "'x' LIKE service_name::String AND NOT MATCH('x', service_name)",
        "'x' LIKE COLUMNS('service')",
        "replaceRegexpOne('x', replaceOne(service_name, 'secret', '('), 'y') = 'z'",
        "clamp('x', service_name, 'y') = 'x'",
        "mapContainsKeyLike(map('x', 'y'), replaceRegexpOne(service_name, '^m.*', 'x\\\\'))",
        "mapContainsValueLike(map('x', 'y'), service_name)",
        "replaceRegexpOne('x', 'x', replaceOne(service_name, 'secret', '\\\\9')) = ''",
        "REGEXP_REPLACE('x', 'x', service_name) = ''",
        "rowNumberInAllBlocks() >= 0",
        "repeat('x', 1000000000 * (length(service_name) - 1)) = ''",
    ],
)
def test_what_is_evaluated_on_a_whole_dictionary_is_refused(shared: Store, condition: str) -> None:
    """ClickHouse evaluates some functions on the dictionary of a LowCardinality column, which rows of all tenants share."""
    guard = guard_of(shared)
    with pytest.raises(Refused, match="not allowed|must be a constant or a cast to String"):
        guard.check(LOW + condition, {}, "shop")
    as_string = "service_name LIKE CAST('x' LIKE model::String, 'String')"
    for usual in (as_string, "service_name LIKE '%x'", "service_name REGEXP {x:String}", "match(service_name, concat('^', 'x'))"):
        guard.check(LOW + usual, {"x": "y"}, "shop")


def test_a_pattern_that_is_cast_to_string_is_evaluated_on_rows(shared: Store) -> None:
    """So the guard accepts it. The same pattern without the cast fails on a value of another tenant, which is why the guard refuses it."""
    pattern = f"replaceOne(service_name, '{SECRET}', 'ends with \\\\')"
    guard = guard_of(shared)
    guard.check(f"{LOW} 'x' LIKE {pattern}::String", {}, "shop")
    assert shared.query_bytes(f"{LOW} 'x' LIKE {pattern}::String", tenant="shop") == b"0\n"
    for sql, tenant in ((f"{LOW} 'x' LIKE {pattern}", "shop"), (f"{LOW} 'x' LIKE {pattern}::String", ALL_TENANTS)):
        with pytest.raises(StoreError):
            shared.query_bytes(sql, tenant=tenant)


def test_no_table_has_an_index_that_evaluates_a_condition(store: Store) -> None:
    """An index of type `set` evaluates the condition of a query on its values, which are those of all tenants."""
    types = {
        str(kind) for (kind,) in store.select("SELECT DISTINCT type FROM system.data_skipping_indices WHERE database = currentDatabase()")
    }
    assert types <= {"bloom_filter", "minmax"}
