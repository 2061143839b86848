"""Tests of the conditions for the primary key that are found in a statement: which, that they change no result, and what is read."""

from __future__ import annotations

import itertools
import re
import time

import pytest

from helpers.servers.reading import guard_of, result_or_fails
from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import StoreRefused
from legato_ingest.query.key_ranges import Known, with_key
from legato_ingest.query.sql_text import Refused
from legato_ingest.quoting import literal
from legato_ingest.storage import Store

COLUMNS = {
    "streams": {"tenant": "String", "start_time": "DateTime64(9, 'UTC')", "trace_id": "FixedString(16)"},
    "samples": {"metric": "String", "recorded_at": "DateTime64(9, 'UTC')", "minute": "DateTime"},
}
KNOWN = Known((*COLUMNS, "others"), frozenset((*COLUMNS["streams"], *COLUMNS["samples"], "value")))
_BOUND = r"if\(ifNull\(accurateCastOrNull\((.*?), 'DateTime64"
_CONDITION = re.compile(rf"`legato_key_(\w+)` ([<>=]+|IN) (?:{_BOUND}|('\w+'|\('a', 'b'\)|\{{.*?\}})\))")


def found(sql: str, subqueries: tuple[str, ...] = ()) -> list[list[str]]:
    """Return the conditions of each table that is read by its key."""
    parts = with_key(sql, COLUMNS, KNOWN, subqueries).split("(SELECT * EXCEPT '^legato_key_' FROM ")[1:]
    return [[f"{column} {sign} {time or other}" for column, sign, time, other in _CONDITION.findall(part)] for part in parts]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("start_time >= toDateTime(5)", ["start_time >= toDateTime(5)"]),
        ("(start_time > now()) AND (value = 1)", ["start_time >= now()"]),
        ("((value = 1) AND (toDateTime(5) > start_time)) AND (value = 2)", ["start_time <= toDateTime(5)"]),
        ("start_time = '2026-01-01 00:00:00'", ["start_time >= '2026-01-01 00:00:00'", "start_time <= '2026-01-01 00:00:00'"]),
        ("start_time <= (now() - toIntervalDay(1))", ["start_time <= now() - toIntervalDay(1)"]),
        ("streams.start_time < {until:DateTime64(9)}", ["start_time <= {until:DateTime64(9)}"]),
        ("tenant = 'shop'", ["tenant = 'shop'"]),
        ("tenant IN ('a', 'b')", ["tenant IN ('a', 'b')"]),
        ("tenant = {name:String}", ["tenant = {name:String}"]),
        (
            "start_time < if((60 % 300) = 0, toDateTime(5), toDateTime(6))",
            ["start_time <= if((60 % 300) = 0, toDateTime(5), toDateTime(6))"],
        ),
    ],
)
def test_what_is_certain_is_found(where: str, expected: list[str]) -> None:
    """Comparisons of a column with constants, joined by AND, with any parentheses."""
    assert found(f"SELECT count() FROM streams WHERE {where}") == [expected]


@pytest.mark.parametrize(
    "where",
    [
        "(start_time > now()) OR (value = 1)",
        "NOT (start_time > now())",
        "start_time != now()",
        "start_time NOT IN (now())",
        "start_time > value",
        "start_time > toDateTime(value)",
        "start_time > (now() + value)",
        "start_time > 5",
        "start_time > toUnixTimestamp(now())",
        "start_time > later",
        "start_time > (SELECT now())",
        "start_time > materialize(now())",
        "toDate(start_time) > today()",
        "(start_time > now()) = 0",
        "trace_id = 'x'",
        "tenant = value",
        "(start_time > now()) AND (tenant IN (streams))",
        "(start_time > now()) AND (tenant NOT IN streams)",
        "(start_time > now()) AND (notNullIn(tenant, streams) = 1)",
        "tenant IN (SELECT 'x')",
        "tenant > 'a'",
        "tenant LIKE 'a%'",
        "other.start_time > now()",
    ],
)
def test_what_is_not_certain_is_left(where: str) -> None:
    """Alternatives, negations, other columns and values of rows."""
    sql = f"SELECT count() FROM streams WHERE {where}"
    assert with_key(sql, COLUMNS, KNOWN, ()) == sql


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT 1 FROM streams AS s WHERE s.start_time > now()", 1),
        ("SELECT 1 FROM streams AS s INNER JOIN samples AS m ON s.value = m.value WHERE (s.start_time > now()) AND (m.minute > now())", 0),
        ("SELECT 1 FROM streams AS s, samples AS m WHERE (s.start_time > now()) AND (m.minute > now())", 0),
        ("SELECT 1 FROM streams AS s LEFT JOIN samples AS m ON s.value = m.value WHERE (s.start_time > now()) AND (m.minute > now())", 0),
        ("SELECT 1 FROM (SELECT 1) AS q LEFT JOIN samples AS m ON 1 = 1 WHERE m.minute > now()", 0),
        ("SELECT 1 FROM streams AS s INNER JOIN samples AS m ON s.value = m.value WHERE start_time > now()", 0),
        *(
            (f"SELECT 1 FROM streams AS s {kind} JOIN samples AS m ON s.value = m.value WHERE s.start_time > now()", 0)
            for kind in ("RIGHT", "FULL", "ANY INNER", "SEMI LEFT", "ANTI LEFT", "ASOF", "PASTE")
        ),
        ("SELECT x FROM streams ARRAY JOIN [1, 2] AS x, [3, 4] AS y WHERE start_time > now()", 0),
        ("SELECT x FROM streams LEFT ARRAY JOIN streams AS x WHERE start_time > now()", 0),
        ("SELECT 1 FROM system.streams WHERE start_time > now()", 0),
        ("SELECT 1 FROM streams(1) WHERE start_time > now()", 0),
        ("SELECT 1 FROM others WHERE start_time > now()", 0),
        ("SELECT 1 FROM streams GROUP BY start_time HAVING start_time > now()", 0),
        ("SELECT 1 FROM streams QUALIFY start_time > now()", 0),
        ("SELECT 1 FROM (SELECT 1 FROM streams WHERE start_time > now()) WHERE start_time > now()", 1),
        ("SELECT 1 FROM (SELECT * FROM streams) WHERE start_time > now()", 0),
        ("SELECT 1 FROM streams WHERE start_time > now() UNION ALL SELECT 1 FROM streams WHERE start_time > now()", 2),
        ("SELECT 1 FROM streams WHERE (start_time > now()) AND (value IN (SELECT value FROM samples WHERE minute > now()))", 2),
        # Names that may mean something else.
        ("SELECT now() AS start_time FROM streams WHERE start_time > now()", 0),
        ("SELECT start_time AS start_time FROM streams WHERE start_time > now()", 0),
        ("SELECT toIntervalSecond(5) + start_time AS start_time FROM streams WHERE start_time > now()", 0),
        ("SELECT 'web' LIKE tenant AS tenant FROM streams WHERE tenant = 'web'", 0),
        ("WITH 3600 + minute AS minute SELECT 1 FROM samples WHERE minute > now()", 0),
        ("SELECT 1 FROM streams WHERE (start_time > now()) AND arrayExists((a, start_time) -> (start_time > a), [1], [2])", 0),
        ("SELECT 1 FROM streams AS start_time WHERE start_time > now()", 0),
        ("SELECT 1 AS `s.start_time` FROM streams AS s WHERE s.start_time > now()", 0),
        ("SELECT 1 AS `p99.9` FROM streams AS s WHERE s.start_time > now()", 1),
        ("SELECT 1 FROM streams SAMPLE 1 / 2 WHERE start_time > now()", 0),
        # An operator with the word FROM.
        ("SELECT z FROM (SELECT (SELECT w IS DISTINCT FROM streams WHERE start_time > now()) AS z FROM (SELECT 1 AS w))", 0),
        ("SELECT value IS DISTINCT FROM 1 FROM streams WHERE start_time > now()", 1),
        # What ClickHouse numbers, also where a pattern finds it.
        ("SELECT _subquery_3 FROM (SELECT (SELECT 1), (SELECT 2) FROM streams WHERE start_time > now())", 0),
        ("SELECT x.`in(value, _subquery_2)` FROM (SELECT value IN (SELECT 1) FROM streams WHERE start_time > now()) AS x", 0),
        ("SELECT COLUMNS('_3$') FROM (SELECT (SELECT 1), (SELECT 2) FROM streams WHERE start_time > now())", 0),
        ("SELECT * EXCEPT '_3$' FROM (SELECT (SELECT 1), (SELECT 2) FROM streams WHERE start_time > now())", 0),
        ("SELECT * EXCEPT STRICT value FROM streams WHERE start_time > now()", 1),
        ("SELECT COLUMNS(value), value = 'x' FROM streams WHERE start_time > now()", 1),
        # What IN may read.
        ("SELECT 1 FROM streams AS s WHERE (s.start_time > now()) AND (value IN (s))", 0),
        ("SELECT globalNotInIgnoreSet(value, s) FROM streams AS s WHERE s.start_time > now()", 0),
        ("SELECT count() AS streams FROM streams WHERE (start_time > now()) AND (value IN (s.value, 1))", 1),
        ("SELECT s.start_time AS start_time FROM streams AS s WHERE start_time > now()", 0),
        ("SELECT value, recorded_at AS start_time FROM streams WHERE start_time > now()", 0),
        ("SELECT 1 FROM streams ARRAY JOIN [now()] AS start_time WHERE start_time > now()", 0),
        ("WITH 1 AS y SELECT value, y AS s FROM streams AS s WHERE s.start_time > now()", 0),
        ("SELECT 1 FROM streams AS s, streams AS s WHERE s.start_time > now()", 0),
        ("SELECT streams.value FROM streams AS s WHERE s.start_time > now()", 0),
        ("SELECT _table FROM streams WHERE start_time > now()", 0),
        ("EXPLAIN SYNTAX SELECT 1 FROM streams WHERE start_time > now()", 0),
        ("SELECT 1 AS lessOrEquals FROM streams WHERE start_time > now()", 0),
        ("SELECT f((value AS start_time)) FROM streams WHERE start_time > now()", 0),
        ("SELECT tuple(1) AS s FROM streams AS s WHERE s.start_time > now()", 0),
        ("SELECT 1 FROM (SELECT start_time FROM streams WHERE start_time > now()) WHERE (value AS start_time) > now()", 0),
        ("SELECT 1 AS start_time FROM streams WHERE value = 1 UNION ALL SELECT 1 FROM streams WHERE start_time > now()", 0),
        ("WITH 1 AS start_time SELECT 1 UNION ALL SELECT 1 FROM streams WHERE start_time > now()", 0),
        ("WITH 1 AS start_time SELECT 1 FROM (SELECT 1 FROM streams WHERE start_time > now())", 0),
        ("SELECT 1 FROM (WITH 1 AS start_time SELECT 1 FROM streams WHERE start_time > now())", 0),
        ("WITH (SELECT 1 AS start_time) AS a SELECT 1 FROM streams WHERE start_time > now()", 0),
        ("SELECT 1 FROM streams AS s INNER JOIN s AS q ON s.value = q.value WHERE s.start_time > now()", 0),
        ("SELECT 1 FROM streams INNER JOIN streams AS q ON streams.value = q.value WHERE streams.start_time > now()", 0),
        ("SELECT 1 FROM streams AS q, streams WHERE streams.start_time > now()", 0),
        ("SELECT 1 FROM streams AS a, streams AS b WHERE (a.start_time > now()) AND (b.start_time > now())", 0),
        ("SELECT 1 AS WHERE FROM streams WHERE start_time > now()", 0),
        # Scalars of WITH.
        ("WITH (SELECT now()) AS later SELECT 1 FROM streams WHERE start_time > later", 1),
        ("WITH 1 AS a, (SELECT (now(), now())) AS later SELECT 1 FROM streams WHERE start_time > (later.1)", 1),
        ("WITH later AS (SELECT now()) SELECT 1 FROM streams WHERE start_time > later", 0),
        ("WITH value AS later SELECT 1 FROM streams WHERE start_time > later", 0),
        ("WITH (SELECT now()) AS later SELECT 2 AS later FROM streams WHERE start_time > later", 0),
        ("WITH (SELECT now()) AS value SELECT 1 FROM streams WHERE start_time > value", 0),
        ("WITH (SELECT now()) + 1 AS later SELECT 1 FROM streams WHERE start_time > later", 0),
        ("WITH (SELECT value) AS later SELECT 1 FROM streams WHERE start_time > later", 0),
        ("WITH (SELECT now()) AS COLUMNS SELECT 1 FROM streams WHERE start_time > toDateTime(COLUMNS('x'))", 0),
        ("WITH (SELECT now()) AS rand SELECT 1 FROM streams WHERE start_time > toDateTime(rand())", 0),
        ("WITH (SELECT now()) AS _part SELECT 1 FROM streams WHERE start_time > _part", 0),
        ("WITH (SELECT now()) AS `a.null` SELECT 1 FROM streams WHERE start_time > `a.null`", 0),
        ("WITH (SELECT now()) AS c1 SELECT 1 FROM streams AS s, values('c1 DateTime', 1) AS n WHERE s.start_time > c1", 0),
        ("WITH (SELECT now()) AS c1 SELECT (SELECT 1 FROM streams WHERE start_time > c1) FROM values('c1 DateTime', 1)", 0),
        ("WITH (SELECT now()) AS c1 SELECT (SELECT 1 FROM streams WHERE start_time > c1) FROM system.parts", 0),
        ("WITH (SELECT now()) AS later SELECT 1 FROM streams AS s, others AS o WHERE s.start_time > later", 0),
        ("WITH 20 AS value, (SELECT max(minute) FROM samples WHERE value < 5) AS later SELECT 1 FROM streams WHERE start_time > later", 0),
        ("WITH (SELECT max(minute) FROM samples WHERE value < 5) AS later SELECT 1 FROM streams WHERE start_time > later", 1),
        (f"SELECT 1 FROM streams WHERE start_time > toDateTime({'+ 1' * 200})", 0),
        ("SELECT 1 FROM streams WHERE start_time > CAST('2026-11-20', 'DateTime64(3)')", 1),
        ("SELECT 1 FROM streams WHERE start_time > CAST('2026-11-20', 'Date32')", 0),
        ("SELECT 1 FROM streams WHERE start_time > CAST(toDate('2026-11-20'), 'UInt32')", 0),
    ],
)
def test_for_which_tables(sql: str, tables: int) -> None:
    """A join may add rows to those of a table; an alias or a subquery may have the name of a table or column."""
    assert len(found(sql)) == tables


def test_a_subquery_with_the_name_of_a_table_is_none() -> None:
    """WITH gives names to subqueries."""
    assert found("SELECT 1 FROM streams WHERE start_time > now()", ("streams",)) == []


CAST = "(start_time > CAST(now(), 'DateTime'))"
MANY = ", ".join(f"streams AS s{number}" for number in range(2_500))


@pytest.mark.parametrize(
    "text",
    [
        f"streams WHERE {'((' * 4_000}start_time > now(){'))' * 4_000}",
        f"streams WHERE {' AND '.join(['(start_time > now())'] * 3_000)}",
        f"streams WHERE {'(SELECT 1 FROM ' * 5_000}",
        f"{MANY} WHERE {' AND '.join(['(s1.start_time > now())'] * 900)}",
        f"{MANY} WHERE value = ({'(' * 6}{', '.join(['1'] * 4_700)}{')' * 6})",
        MANY + " WHERE s1.start_time > " + "CAST(" * 1_500 + "now()" + ", 'DateTime')" * 1_500,
        f"streams WHERE {' AND '.join([CAST] * 1_400)}",
        f"{', '.join(['streams AS s'] * 4_000)} WHERE s.tenant = '{'x' * 200_000}'",
        f"{MANY} WHERE {' AND '.join(f'(s{number}.tenant = {chr(39)}{chr(120) * 9_000}{chr(39)})' for number in range(99))}",
    ],
)
def test_time_and_size_are_bounded(text: str) -> None:
    """Of deep and long statements, also of those with many tables and many conditions."""
    begin_s, sql = time.process_time(), f"SELECT 1 FROM {text}"
    assert len(with_key(sql, COLUMNS, KNOWN, ())) < len(sql) + 300_000
    assert time.process_time() - begin_s < 3


FORMS = (
    "now64(9)",
    "'2026-11-20 00:00:05'",
    "'2026-11-20 00:00:05.5'",
    "'2026-11-20'",
    "toDateTime('2026-11-20 00:00:03')",
    "toDate('2026-11-21')",
    "toDate('2026-11-20')",
    "toDateTime64('2299-12-31 23:59:59', 3)",
    "toDateTime64('1900-01-01 00:00:00', 3)",
    "toDateTime(0)",
    "yesterday()",
    "fromUnixTimestamp64Milli(1795132803500)",
    "fromUnixTimestamp64Nano(1795132803500000001)",
    "toDateTime('2026-11-20 00:00:03', 'Asia/Tokyo')",
    "toStartOfHour(toDateTime(1795132803))",
    "toDateTime64('2026-11-20 00:00:03.7', 1) - INTERVAL 1 SECOND",
    "'nonsense'",
    "CAST('2026-11-20', 'Date')",
    "toDateTime(1795132805) - toDateTime(1795132800)",
    "least(toDateTime(1795132805), now())",
    "CAST(1795132805, 'Float64')",
    "'1900-01-01 00:00:00'",
)


def test_no_result_changes(store: Store) -> None:
    """A DateTime64 and a DateTime are compared with each form of a constant as ClickHouse compares them without the key."""
    at = "toDateTime64('2026-11-20 00:00:00', 9, 'UTC') + number / 2"
    store.command(
        f"INSERT INTO stream_revs (tenant, start_time, trace_id) SELECT 'shop', {at}, toFixedString(toString(number), 16) FROM numbers(20)"
    )
    store.command(f"INSERT INTO stream_minutes (tenant, minute) SELECT 'shop', {at} + number FROM numbers(20)")
    guard, answered = guard_of(store), 0
    for form, sign, (column, table) in itertools.product(
        FORMS, ("<", "<=", "=", ">", ">="), (("start_time", "stream_revs"), ("minute", "stream_minutes"))
    ):
        sql = f"SELECT groupArray({column}) FROM (SELECT {column} FROM {table} WHERE {column} {sign} {form} ORDER BY ALL)"
        by_key = guard.check(sql, {}, "shop").sql
        assert "_keyed" in by_key or "Float64" in form, form
        expected = result_or_fails(store, sql)
        # A row that is not read makes nothing fail.
        assert expected == "fails" or result_or_fails(store, by_key) == expected, (sql, by_key)
        answered += expected not in ("fails", "[]\n")
    assert answered > 60


def rows_read(store: Store, sql: str) -> int:
    """Return how many granules of the base table a statement of the shop reads."""
    plan = store.query_bytes(f"EXPLAIN indexes = 1 {sql}", tenant="shop").decode()
    return int(re.findall(r"Granules: (\d+)/\d+\n\s+Search", plan)[-1])


def test_only_the_granules_of_a_time_are_read(store: Store) -> None:
    """Of a tenant with many rows; and all of them where the time is not certain, but none of other tenants."""
    at = "toDateTime64('2026-11-20 00:00:00', 9, 'UTC') + number / 100"
    for tenant in ("bank", "shop", "zoo"):
        rows = f"SELECT '{tenant}', {at}, toFixedString(toString(number), 16) FROM numbers(100000)"
        store.command(f"INSERT INTO stream_revs (tenant, start_time, trace_id) {rows}")
    store.command("OPTIMIZE TABLE stream_revs FINAL")
    guard = guard_of(store)
    first = "start_time < '2026-11-20 00:00:01'"
    assert rows_read(store, guard.check(f"SELECT count() FROM stream_revs WHERE {first}", {}, "shop").sql) <= 2
    assert rows_read(store, guard.check(f"SELECT max(rev) FROM streams AS s WHERE s.{first}", {}, "shop").sql) <= 2
    assert 12 <= rows_read(store, guard.check(f"SELECT count() FROM stream_revs WHERE NOT (NOT ({first}))", {}, "shop").sql) <= 15


def keys_of(store: Store, table: str, condition: str) -> list[str]:
    """Return the columns of primary keys that the plan of a statement of the shop uses."""
    plan = store.query_bytes(f"EXPLAIN indexes = 1 SELECT count() FROM `{table}` WHERE {condition}", tenant="shop").decode()
    return [name for keys in re.findall(r"PrimaryKey\n\s+Keys:\n((?:\s+\w+\n)+)\s+Condition", plan) for name in keys.split()]


def test_no_column_of_a_view_is_one_of_the_key(store: Store) -> None:
    """Whatever a reader compares, the plan uses the tenant's own condition alone. With a row in each table, so that a plan has indexes."""
    own = store.select("SELECT name, engine FROM system.tables WHERE database = 'default' AND name != 'schema_migrations' ORDER BY name")
    for table, engine in own:
        if engine != "View":
            # With the current time in each column of times: a merge by TTL may delete a row of 1970 at once.
            times = store.select(
                "SELECT name FROM system.columns WHERE database = 'default' AND default_kind = ''"
                f" AND table = '{table}' AND startsWith(type, 'DateTime')"
            )
            names = ", ".join(["tenant", *(name for (name,) in times)])
            store.command(f"INSERT INTO {table} ({names}) SELECT 'shop'{', now()' * len(times)}")
    checked = 0
    for (table, _), final in itertools.product(own, ("", "_final")):
        columns = store.select(f"SELECT name, type FROM system.columns WHERE database = 'default_tenants' AND table = '{table}{final}'")
        conditions = [
            f"`{name}` = defaultValueOfTypeName({literal(type_name)})"
            for name, type_name in columns
            if "(" not in type_name or type_name.startswith("DateTime")
        ]
        keys = [keys_of(store, f"{table}{final}", each) for each in ("rand() >= 0", *conditions, " AND ".join(conditions))]
        # Some views have conditions on keys themselves.
        assert all(each == keys[0] for each in keys), (
            table,
            [(c, k) for c, k in zip(("", *conditions, "all"), keys, strict=True) if k != keys[0]],
        )
        checked += len(keys) if keys[0] else 0
    assert checked > 300


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count() FROM stream_revs_keyed",
        "SELECT count() FROM `stream_revs_final_keyed`",
        "SELECT 1 WHERE 1 IN stream_revs_keyed",
        "SELECT legato_key_start_time FROM stream_revs WHERE start_time > now()",
        "SELECT 1 AS legato_key_start_time",
        "SELECT default.stream_revs_keyed.rev FROM stream_revs",
        "SELECT * FROM default_tenants.stream_revs_keyed",
        "DESCRIBE TABLE stream_revs_keyed",
        "EXISTS TABLE stream_revs_keyed",
        "SHOW CREATE VIEW stream_revs_keyed",
    ],
)
def test_readers_cannot_name_the_views_with_the_key(shared_store: Store, sql: str) -> None:
    """Nor their columns, in any kind of statement."""
    with pytest.raises((Refused, StoreRefused)):
        guard_of(shared_store).check(sql, {}, "shop")


def test_readers_do_not_see_the_views_with_the_key(shared_store: Store) -> None:
    """In no list of tables or columns; a matcher finds no column of the key."""
    for listed in ("SHOW TABLES", "SELECT name FROM system.tables", "SELECT table, name FROM system.columns"):
        assert b"keyed" not in shared_store.query_bytes(listed, tenant="shop") and b"stream_revs" in shared_store.query_bytes(
            listed, tenant="shop"
        )
    guard = guard_of(shared_store)
    for selected in ("*", "COLUMNS('key')", "stream_revs.*"):
        sql = guard.check(f"SELECT {selected} FROM stream_revs WHERE start_time > now()", {}, "shop").sql
        assert ("_keyed" in sql) == ("COLUMNS" not in selected)
        content = result_or_fails(shared_store, f"SELECT 1 FROM ({sql})")
        assert content in ("", "fails") and b"legato_key" not in shared_store.query_bytes(
            "DESCRIBE TABLE (SELECT * FROM stream_revs)", tenant="shop"
        )


@pytest.mark.parametrize("function", ["lessOrEquals", "ifNull", "toDate", "f"])
@pytest.mark.parametrize(
    "form", ["WITH (a, b) -> 1 AS {0} SELECT 1", "WITH (a -> 1) AS {0} SELECT 1", "SELECT arrayMap((a -> 1) AS {0}, [1])"]
)
def test_no_function_of_a_reader_is_applied_to_the_key(shared_store: Store, function: str, form: str) -> None:
    """A lambda with the name of a function that the conditions call would see times of other tenants."""
    sql = f"{form.format(function)} FROM stream_revs WHERE start_time < '2026-11-20 00:00:50'"
    assert "_keyed" not in guard_of(shared_store).check(sql, {}, "shop").sql
    nameless = "SELECT arrayMap(a -> 1, [1]) FROM stream_revs WHERE start_time < '2026-11-20 00:00:50'"
    assert "_keyed" in guard_of(shared_store).check(nameless, {}, "shop").sql


def test_errors_show_the_readers_names_alone(shared_store: Store) -> None:
    """Not the statement as it is run, and no names of other views that are like an unknown one."""
    guard = guard_of(shared_store)
    for sql, named in (
        ("SELECT nosuch FROM stream_revs WHERE start_time > now()", "nosuch"),
        ("SELECT 1 FROM Stream_revs_Keyed", "Stream_revs_Keyed"),
        ("SELECT plus(1, 2, 3) FROM stream_revs WHERE start_time > now()", "plus"),
    ):
        with pytest.raises(StoreRefused, match=named) as raised:
            shared_store.query_bytes(guard.check(sql, {}, "shop").sql, tenant="shop")
        assert "legato_key" not in str(raised.value) and "stream_revs_keyed" not in str(raised.value)


def test_readers_of_all_tenants_read_as_they_wrote(shared_store: Store) -> None:
    """They see all rows, so nothing is hidden from them."""
    sql = "SELECT count() FROM stream_revs WHERE start_time > now()"
    assert guard_of(shared_store).check(sql, {}, ALL_TENANTS).sql == sql
