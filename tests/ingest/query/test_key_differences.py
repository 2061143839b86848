"""Statements of one tenant give the same answer whatever rows another tenant has: the two share granules, and the key of the other one may
be evaluated.

The statements are those of reviewers, and random ones over all functions that may be applied to a key.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable

import pytest

from helpers.servers.reading import guard_of
from legato_ingest.errors import StoreError
from legato_ingest.query.key_functions import ANY, CONSTANTS, FUNCTIONS
from legato_ingest.storage import Store

# The bank's row: its start and the step of its engine. The interval overflows for the later ones.
BANKS = (("2026-11-20 08:00:00", 0), ("2026-11-20 20:00:00", 2**63), ("2106-02-07 06:28:15", 2**64 - 1), ("1970-01-01 00:00:00", 709))
N = 9_223_372_036 - 1_795_168_800
LATER = f"+ INTERVAL {N} SECOND > now64(9)"
REVS = "SELECT count() FROM stream_revs"
STATEMENTS = (
    f"{REVS} WHERE start_time {LATER}",
    f"{REVS} WHERE plus(COLUMNS('^start_time$'), INTERVAL {N} SECOND) > now64(9)",
    f"{REVS} AS a WHERE plus(a.COLUMNS('^start_time$'), INTERVAL {N} SECOND) > now64(9)",
    f"SELECT count() FROM (SELECT start_time FROM stream_revs) WHERE plus(*, INTERVAL {N} SECOND) > now64(9)",
    f"SELECT count() FROM (SELECT toTimeZone(start_time, 'UTC') FROM stream_revs) WHERE `toTimeZone(start_time, 'UTC')` {LATER}",
    f"SELECT count() FROM (SELECT now64(9) AS z FROM stream_revs WHERE 0 UNION ALL SELECT start_time FROM stream_revs) WHERE z {LATER}",
    f"SELECT count() FROM (SELECT 'a' AS z FROM stream_revs WHERE rev = 99 UNION ALL SELECT start_time FROM stream_revs) WHERE z {LATER}",
    f"SELECT count() FROM (SELECT 5 AS z FROM stream_revs WHERE 0 UNION ALL SELECT start_time FROM stream_revs) WHERE z {LATER}",
    f"SELECT count() FROM (SELECT recorded_at AS duration_ns FROM engine_steps UNION ALL SELECT start_time FROM stream_revs) "
    f"WHERE duration_ns {LATER}",
    f"{REVS} WHERE ((start_time AS `x.y`) > 0) AND `x.y` {LATER}",
    f"SELECT count() FROM (SELECT start_time AS `x (alias y)` FROM stream_revs) WHERE `x (alias y)` {LATER}",
    f"{REVS} WHERE start_time + (SELECT toIntervalSecond({N} + max(rev) - 1) FROM stream_revs) > now64(9)",
    f"SELECT arrayMap(start_time -> (SELECT count() FROM stream_revs WHERE start_time {LATER}), [1])",
    f"WITH c AS (SELECT {N}) SELECT count() FROM stream_revs, c WHERE start_time + toIntervalSecond(`{N}`) > now64(9)",
    f"SELECT count() FROM (SELECT start_time, {N} FROM stream_revs) WHERE start_time + toIntervalSecond(`{N}`) > now64(9)",
    f"{REVS} AS a INNER JOIN engine_steps AS b ON a.start_time = b.engine_epoch WHERE b.engine_epoch {LATER}",
    f"{REVS} AS a SEMI JOIN engine_steps AS b ON a.start_time = b.engine_epoch WHERE b.engine_epoch {LATER}",
    f"{REVS} AS a, engine_steps AS b WHERE a.start_time = b.engine_epoch AND b.engine_epoch {LATER}",
    f"SELECT start_time FROM stream_revs GROUP BY start_time HAVING any(start_time) {LATER} ORDER BY start_time",
    f"SELECT count() FROM (SELECT start_time AS a, max(start_time) AS m FROM stream_revs GROUP BY a) WHERE m {LATER}",
    f"{REVS} WHERE if(1, start_time, received_at) {LATER}",
    f"{REVS} WHERE CASE WHEN 1 THEN start_time ELSE toDateTime64(duration_ns, 9) END {LATER}",
    f"{REVS} WHERE start_time + toIntervalSecond({N} + isNull(duration_ns)) > now64(9)",
    f"{REVS} WHERE start_time + toIntervalSecond({N} + length(toTypeName(duration_ns)) - 6) > now64(9)",
    f"{REVS} WHERE (SELECT start_time) {LATER}",
    f"WITH start -> start {LATER} AS lower SELECT count() FROM stream_revs WHERE lower(start_time)",
    "SELECT count() FROM engine_steps WHERE toDateTime64(toDateTime64(plus(COLUMNS('^step$'), 1), 0), 9) > now64(9)",
    "SELECT count() FROM engine_steps WHERE intDiv(-9223372036854775808, minus(COLUMNS('^step$'), 1)) > 0",
    "SELECT count() FROM engine_steps WHERE accurateCast(plus(COLUMNS('^step$'), 1), 'UInt32') > 0",
    "SELECT count() FROM engine_steps WHERE intDiv(exp(step), 5) > 0",
    "SELECT count() FROM engine_steps WHERE toUInt64(exp(step)) > 0",
    "SELECT count() FROM engine_steps WHERE CAST(exp(step), 'Int64') > 0",
    # These fail on the shop's own rows, where the granule that they share with the bank's is read.
    f"{REVS} WHERE length(range(rev + 10000000000)) > 0 AND start_time < '2026-11-19 00:00:00'",
    f"{REVS} WHERE match(service_name, '(') AND start_time < '2026-11-19 00:00:00'",
    f"{REVS} WHERE start_time IN (SELECT 5)",
    f"{REVS} WHERE toStartOfInterval(start_time, INTERVAL 1 DAY, toDateTime64('2026-11-20 12:00:00', 9)) > now()",
    f"{REVS} WHERE start_time > addYears(now64(3), 260)",
    "SELECT count() FROM (SELECT rev AS z FROM stream_revs UNION ALL SELECT exp(step) FROM engine_steps) WHERE toUInt64(z) > 0",
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


def statements_by_key(store: Store, statements: Iterable[str]) -> list[str]:
    """Return the canonical texts of those statements of the shop that may use the key."""
    guard = guard_of(store)
    found = []
    for sql in statements:
        with contextlib.suppress(StoreError):
            statement = guard.check(sql, {}, "shop")
            found += [statement.sql] if statement.by_key else []
    return found


def answer(store: Store, sql: str, *, by_key: bool) -> str:
    """Return the result of a statement of the shop, or how it fails."""
    try:
        return store.query_bytes(sql, tenant="shop", by_key=by_key).decode()
    except StoreError as error:
        return str(error.code)


def compare(store: Store, statements: Iterable[str], *, by_key: bool = True) -> int:
    """Compare the answers beside each row of the bank. Return how many statements gave a result."""
    each = []
    for bank in BANKS:
        store_rows(store, *bank)
        each.append([answer(store, sql, by_key=by_key) for sql in statements])
    for sql, *beside in zip(statements, *each, strict=True):
        assert len(set(beside)) == 1, (sql, beside)
    return sum(not said.isdecimal() for said in each[0])


def test_no_statement_of_the_reviewers_shows_a_key(shared_store: Store) -> None:
    """Each of them failed beside one row of the bank, and not beside another one."""
    assert statements_by_key(shared_store, STATEMENTS) == []
    compare(shared_store, STATEMENTS, by_key=False)


OF_KINDS = sorted(name for name, (takes, _) in FUNCTIONS.items() if takes != ANY)
OF_ANY = sorted(FUNCTIONS.keys() - set(OF_KINDS) - {"lambda", "arraymap", "arrayfirstindex", "arraycount", "arrayexists"})
TYPES = ("UInt8", "UInt64", "Int64", "Float64", "DateTime", "String", "DateTime64(9)")
UNITS = ("Second", "Minute", "Hour", "Day", "Week", "Month", "Year")
NUMBERS = "0 1 -1 5 0.5 709 1000000000 9223372036 4294967295 9223372036854775807 18446744073709551615 1e300".split()
SIDES = (*NUMBERS, "now64(9)", "toDateTime64('2026-11-20 12:00:00', 9)", "'2026-11-20 12:00:00'", "toDateTime(1795000000)")
COLUMNS = (("start_time", "stream_revs"), ("rev", "stream_revs"), ("step", "engine_steps"), ("recorded_at", "engine_steps"))


def spelling(store: Store) -> dict[str, str]:
    """Return the names of functions as ClickHouse writes them."""
    listed = ", ".join(f"'{name}'" for name in (*FUNCTIONS, *CONSTANTS))
    rows = store.select(f"SELECT lower(name), any(name) FROM system.functions WHERE lower(name) IN ({listed}) GROUP BY lower(name)")
    return {str(lower): str(name) for lower, name in rows}


def random_statement(rng: random.Random, names: dict[str, str]) -> str:
    """Return a statement with a chain of functions of a column of a key, and constants as further arguments."""
    text, table = rng.choice(COLUMNS)
    for _ in range(rng.randint(1, 4)):
        constant = rng.choice(NUMBERS)
        name = names.get(rng.choice(OF_KINDS if rng.random() < 0.8 else OF_ANY), "plus")
        forms = (
            f"{text} {rng.choice('+-*/%')} {constant}",
            f"{text} {rng.choice('+-')} toInterval{rng.choice(UNITS)}({constant})",
            f"{names[rng.choice(sorted(CONSTANTS.keys() & names.keys()))]}({text}, {constant})",
            f"CAST({text}, '{rng.choice(TYPES)}')",
            f"{name}({text}, {constant})",
            f"{name}({text})",
        )
        text = f"({rng.choices(forms, (2, 1, 1, 2, 2, 4))[0]})"
    return f"SELECT count() FROM {table} WHERE {text} {rng.choice(('=', '<', '>', '!=', '>='))} {rng.choice(SIDES)}"


@pytest.mark.parametrize("seed", range(3))
def test_no_random_statement_shows_a_key(shared_store: Store, seed: int) -> None:
    """Chains of listed functions over a time and a number of a key, with extremes as constants."""
    rng, names = random.Random(seed), spelling(shared_store)
    statements = statements_by_key(shared_store, [random_statement(rng, names) for _ in range(150)])
    assert compare(shared_store, statements) > 5
