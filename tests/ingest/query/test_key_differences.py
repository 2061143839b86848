"""Statements of one tenant give the same answer whatever rows another tenant has, though the two share granules.

The statements are those of reviewers, each of which once failed beside one row of the other tenant and not beside another, and random ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from helpers.servers.reading import guard_of
from legato_ingest.errors import StoreError
from legato_ingest.query.reads import content_of
from legato_ingest.query.sql_guard import Guard
from legato_ingest.storage import Store

# The bank's row: its start and the step of its engine. The interval overflows for the later ones.
BANKS = (("2026-11-20 08:00:00", 0), ("2026-11-20 20:00:00", 2**63), ("2106-02-07 06:28:15", 2**64 - 1), ("1970-01-01 00:00:00", 709))
N = 9_223_372_036 - 1_795_168_800
LATER = f"+ INTERVAL {N} SECOND > now64(9)"
REVS = "SELECT count() FROM stream_revs"
BEFORE = "start_time < '2026-11-19 00:00:00'"
STATEMENTS = (
    # They compute from the value of a key, which may be the bank's.
    f"{REVS} WHERE start_time {LATER}",
    f"{REVS} WHERE plus(COLUMNS('^start_time$'), INTERVAL {N} SECOND) > now64(9)",
    f"{REVS} AS a WHERE plus(a.COLUMNS('^start_time$'), INTERVAL {N} SECOND) > now64(9)",
    f"SELECT count() FROM (SELECT start_time FROM stream_revs) WHERE plus(*, INTERVAL {N} SECOND) > now64(9)",
    f"SELECT count() FROM (SELECT toTimeZone(start_time, 'UTC') FROM stream_revs) WHERE `toTimeZone(start_time, 'UTC')` {LATER}",
    f"SELECT count() FROM (SELECT now64(9) AS z FROM stream_revs WHERE 0 UNION ALL SELECT start_time FROM stream_revs) WHERE z {LATER}",
    f"SELECT count() FROM (SELECT 'a' AS z FROM stream_revs WHERE rev = 99 UNION ALL SELECT start_time FROM stream_revs) WHERE z {LATER}",
    f"SELECT count() FROM (SELECT recorded_at AS duration_ns FROM engine_steps UNION ALL SELECT start_time FROM stream_revs) "
    f"WHERE duration_ns {LATER}",
    f"{REVS} WHERE ((start_time AS `x.y`) > 0) AND `x.y` {LATER}",
    f"SELECT count() FROM (SELECT start_time AS `x (alias y)` FROM stream_revs) WHERE `x (alias y)` {LATER}",
    f"{REVS} WHERE start_time + (SELECT toIntervalSecond({N} + max(rev) - 1) FROM stream_revs) > now64(9)",
    f"SELECT arrayMap(start_time -> (SELECT count() FROM stream_revs WHERE start_time {LATER}), [1])",
    f"WITH c AS (SELECT {N}) SELECT count() FROM stream_revs, c WHERE start_time + toIntervalSecond(`{N}`) > now64(9)",
    f"{REVS} AS a INNER JOIN engine_steps AS b ON a.start_time = b.engine_epoch WHERE b.engine_epoch {LATER}",
    f"{REVS} AS a SEMI JOIN engine_steps AS b ON a.start_time = b.engine_epoch WHERE b.engine_epoch {LATER}",
    f"{REVS} AS a, engine_steps AS b WHERE a.start_time = b.engine_epoch AND b.engine_epoch {LATER}",
    f"SELECT start_time FROM stream_revs GROUP BY start_time HAVING any(start_time) {LATER} ORDER BY start_time",
    f"SELECT count() FROM (SELECT start_time AS a, max(start_time) AS m FROM stream_revs GROUP BY a) WHERE m {LATER}",
    f"{REVS} WHERE if(1, start_time, received_at) {LATER}",
    f"{REVS} WHERE start_time + toIntervalSecond({N} + length(toTypeName(duration_ns)) - 6) > now64(9)",
    f"{REVS} WHERE (SELECT start_time) {LATER}",
    f"WITH start -> start {LATER} AS lower SELECT count() FROM stream_revs WHERE lower(start_time)",
    "SELECT count() FROM engine_steps WHERE toDateTime64(toDateTime64(plus(COLUMNS('^step$'), 1), 0), 9) > now64(9)",
    "SELECT count() FROM engine_steps WHERE intDiv(-9223372036854775808, minus(COLUMNS('^step$'), 1)) > 0",
    "SELECT count() FROM engine_steps WHERE accurateCast(plus(COLUMNS('^step$'), 1), 'UInt32') > 0",
    "SELECT count() FROM engine_steps WHERE toUInt64(exp(step)) > 0",
    f"{REVS} WHERE toStartOfInterval(start_time, INTERVAL 1 DAY, toDateTime64('2026-11-20 12:00:00', 9)) > now()",
    f"{REVS} WHERE start_time > addYears(now64(3), 260)",
    f"{REVS} WHERE start_time IN (SELECT 5)",
    "SELECT count() FROM (SELECT rev AS z FROM stream_revs UNION ALL SELECT exp(step) FROM engine_steps) WHERE toUInt64(z) > 0",
    # They fail on each of the shop's own rows that is read: beside the bank's row its first ones were read also for a time before them.
    f"{REVS} WHERE length(range(rev + 10000000000)) > 0 AND {BEFORE}",
    f"{REVS} WHERE {BEFORE} AND match(service_name, '(')",
    f"SELECT intDiv(1, rev - 1) FROM stream_revs WHERE {BEFORE}",
    f"{REVS} WHERE {BEFORE} AND intDiv(1, rev - 1) > 0",
    f"SELECT * FROM (SELECT intDiv(1, rev - 1) AS x, start_time FROM stream_revs) WHERE {BEFORE} AND x > 0",
    f"SELECT intDiv(1, z) FROM stream_revs AS a LEFT JOIN (SELECT 1 AS z, 'no' AS n) AS b ON a.service_name = b.n WHERE a.{BEFORE}",
    f"SELECT intDiv(1, row_number() OVER w - 1) FROM stream_revs WHERE {BEFORE} WINDOW w AS (ORDER BY start_time)",
    f"{REVS} WHERE {BEFORE} AND arrayExists(x -> x > 5, [service_name])",
    f"SELECT addNanoseconds(a.start_time, b.duration_ns + {2**63 - 1}) FROM stream_revs AS a, stream_revs AS b WHERE a.{BEFORE}",
    f"WITH (SELECT start_time {LATER} FROM system.one) AS later SELECT count() FROM stream_revs WHERE start_time > toDateTime64(later, 9)",
    f"WITH (SELECT start_time + INTERVAL {N} SECOND FROM system.one) AS later SELECT count() FROM stream_revs WHERE start_time > later",
    f"WITH (SELECT max(start_time + INTERVAL {N} SECOND) FROM system.one) AS later {REVS} WHERE start_time > later",
    f"WITH (a, b) -> ((a + INTERVAL {N} SECOND) > now64(9)) AS lessOrEquals {REVS} WHERE start_time < '2026-12-21 00:00:00'",
    f"WITH (a, b) -> (a + INTERVAL {N} SECOND) AS plus {REVS} WHERE start_time < '2026-12-21 00:00:00'",
    f"WITH (x -> if(intDiv(1, rev - 1) >= 0, now(), now())) AS toDate {REVS} WHERE start_time < toDate(1) AND {BEFORE}",
    f"WITH (SELECT start_time + INTERVAL {N} SECOND) AS later {REVS} WHERE start_time > later AND start_time < '2030-01-01 00:00:00'",
    f"WITH (SELECT max(recorded_at) FROM engine_steps AS e WHERE a.start_time {LATER} OR e.step > 0) AS later "
    f"{REVS} AS a WHERE a.start_time > later AND a.start_time < '2030-01-01 00:00:00'",
    f"WITH (SELECT now()) AS COLUMNS {REVS} WHERE start_time >= toDateTime(COLUMNS('^(legato_key_)?start_time$') + toIntervalSecond({N}))",
)


def store_rows(store: Store, start: str, step: int) -> None:
    """Store the rows of the shop, which are always the same, and one row of the bank before them in each table."""
    for table in ("stream_revs", "engine_steps"):
        store.command(f"TRUNCATE TABLE {table}")
    columns = "tenant, start_time, trace_id, received_at, service_name, rev"
    at, own = f"toDateTime64('{start}', 9, 'UTC')", "toDateTime64('2026-11-20 00:00:00', 9, 'UTC') + number"
    store.command(
        f"INSERT INTO stream_revs ({columns}) SELECT 'bank' AS tenant, {at}, toFixedString('b', 16), toDateTime64(0, 3), 'b', 1 UNION ALL "
        f"SELECT 'shop', {own}, toFixedString(toString(number), 16), toDateTime64(0, 3), 'web', 1 FROM numbers(10)"
    )
    columns = "tenant, engine_id, engine_epoch, recorded_at, step"
    store.command(
        f"INSERT INTO engine_steps ({columns}) SELECT 'bank' AS tenant, 'e', {at}, {at}, toUInt64({step}) UNION ALL "
        f"SELECT 'shop', 'e', {own}, {own}, number + 1 FROM numbers(10)"
    )


def answers(store: Store, guard: Guard, statements: Iterable[str]) -> list[str]:
    """Return the results of statements of the shop, or how they fail."""
    found = []
    for sql in statements:
        try:
            found.append(content_of(store, guard.check(sql, {}, "shop"), {}, "TabSeparated", "shop").decode())
        except StoreError as error:
            found.append(f"{error.code} ")
    return found


def compare(store: Store, statements: list[str]) -> int:
    """Compare the answers beside each row of the bank. Return how many statements gave a result."""
    guard, each = guard_of(store), []
    for bank in BANKS:
        store_rows(store, *bank)
        each.append(answers(store, guard, statements))
    for sql, *beside in zip(statements, *each, strict=True):
        assert len(set(beside)) == 1, (sql, beside)
    return sum(not said.endswith(" ") for said in each[0])


def test_no_statement_of_the_reviewers_shows_a_row(shared_store: Store) -> None:
    """Neither which row of the bank is in the granule of the shop's, nor whether any is."""
    assert compare(shared_store, list(STATEMENTS)) > 10
    guard = guard_of(shared_store)
    beside = answers(shared_store, guard, STATEMENTS)
    for table in ("stream_revs", "engine_steps"):
        shared_store.command(f"ALTER TABLE {table} DELETE WHERE tenant = 'bank' SETTINGS mutations_sync = 1")
    assert answers(shared_store, guard, STATEMENTS) == beside


TIMES = (
    "start_time",
    "toDate(start_time)",
    "toUnixTimestamp(start_time)",
    "received_at",
    "toStartOfHour(start_time)",
    "start_time + duration_ns",
    "toDateTime(start_time) - 5",
    "addYears(start_time, 270)",
    "rev",
    "intDiv(rev, rev - 1)",
    "toUInt8(rev) / 0",
)
CONSTANTS = (
    "now64(9)",
    "'2026-11-20 00:00:05'",
    "'2026-11-19 00:00:00'",
    "toDateTime('2026-11-20 00:00:03')",
    "toDate('2026-11-21')",
    "5",
    "-1.5",
    "addYears(now64(3), 260)",
    "toDateTime64('2299-12-31 23:59:59', 3)",
    "fromUnixTimestamp64Milli(1795132803500)",
    "'x'",
    "NULL",
    "[1]",
    "(SELECT max(start_time) FROM stream_revs)",
    "(SELECT start_time)",
    "toIntervalDay(1)",
    "toDateTime(18446744073709551615)",
)
SOURCES = (
    "stream_revs",
    "stream_revs",
    "stream_revs AS s FINAL",
    "(SELECT * FROM stream_revs) AS q",
    "streams",
    "stream_revs AS a INNER JOIN stream_revs AS b USING (trace_id)",
    "stream_revs LEFT JOIN engine_steps ON start_time = recorded_at",
)


def random_statement(rng: random.Random) -> str:
    """Return a statement with comparisons of computed times and constants, some of which fail on some values."""
    terms = [
        f"{rng.choice(TIMES)} {rng.choice(('=', '<', '>', '!=', '>=', '<=', 'IN'))} {rng.choice(CONSTANTS)}"
        for _ in range(rng.randint(1, 3))
    ]
    where = f" {rng.choice(('AND', 'AND', 'OR'))} ".join(terms)
    selected = rng.choice(("count()", "sum(rev)", f"max({rng.choice(TIMES)})"))
    return f"SELECT {selected} FROM {rng.choice(SOURCES)} WHERE {where}"


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_no_random_statement_shows_a_key(shared_store: Store, seed: int) -> None:
    """Forms with and without what the key is used for."""
    rng = random.Random(seed)
    assert compare(shared_store, [random_statement(rng) for _ in range(60)]) > 8
