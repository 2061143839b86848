"""Statements of one tenant have the result, or the error, that they have without the conditions for the primary key.

The statements are those of a reviewer: each had another result, or failed.
"""

from __future__ import annotations

from helpers.servers.reading import guard_of, result_or_fails
from legato_ingest.errors import StoreError
from legato_ingest.query.reads import content_of
from legato_ingest.storage import Store

EARLY = "start_time < '2026-11-20 00:00:05'"
NEWEST = "SELECT max(b.start_time) FROM stream_revs AS b WHERE b.rev"
SIGNS = ("<", "<=", "=", ">=", ">")
ENDS = (
    "fromUnixTimestamp64Nano(9223372036854775807)",
    "fromUnixTimestamp64Nano(-9100000000000000000)",
    "'2262-04-11 23:47:16.854775807'",
    "'1900-01-01 00:00:00'",
)
LATE = ("'2270-01-01 00:00:00'", "'2280-01-01 00:00:00'", "toDateTime64('2299-12-31 23:59:59', 3)", "'1800-01-01'")
HOUR = "start_time >= '2026-11-20 02:00:00'"
EARLIER = "(tenant, start_time - toIntervalHour(1), trace_id, span_id, rev, at, queued_bytes, window_bytes, idle_ms)"
NAMED = (
    # An operator is printed without parentheses, so the name of a column is the last word of an expression.
    "SELECT INTERVAL 5 SECOND + start_time AS start_time FROM stream_revs WHERE start_time >= '2026-11-20 00:00:13'",
    "SELECT 3600 + minute AS minute, count() FROM stream_minutes WHERE minute >= '2026-11-20 01:00:00' GROUP BY minute ORDER BY minute",
    "WITH 3600 + minute AS minute SELECT count() FROM stream_minutes WHERE minute >= '2026-11-20 01:00:00'",
    "SELECT rev, 'web' LIKE service_name AS service_name FROM stream_revs WHERE service_name = '1' ORDER BY rev",
    f"SELECT count() FROM stream_revs WHERE NOT ({EARLY}) GROUP BY INTERVAL 5 SECOND + start_time AS start_time",
    # The right side of IN is the whole table.
    f"SELECT count() FROM stream_sockets WHERE {HOUR} AND {EARLIER} IN stream_sockets",
    f"SELECT count() FROM stream_sockets AS f WHERE f.{HOUR} AND {EARLIER} NOT IN f",
    f"SELECT countIf(notNullIn({EARLIER}, f)) FROM stream_sockets AS f WHERE f.{HOUR}",
    # A source beside the table may have a column with this name and a dot.
    "SELECT count() FROM (SELECT * FROM stream_minutes AS m LEFT JOIN stream_revs AS s ON m.tenant = s.tenant) AS v "
    "INNER JOIN stream_revs AS s ON v.rev = s.rev WHERE s.service_name = 'api' AND v.minute < '2026-11-20 00:03:00'",
    f"SELECT count() FROM (SELECT now() AS `s.start_time`) AS v, stream_revs AS s WHERE s.{EARLY}",
    f"SELECT count() FROM stream_revs AS s ARRAY JOIN [toDateTime64('2026-11-20 00:00:01', 9)] AS `s.start_time` WHERE s.{EARLY}",
    # A subquery with the name of the table.
    f"WITH stream_revs AS MATERIALIZED (SELECT * FROM stream_revs WHERE rev = 1) SELECT count() FROM stream_revs WHERE {EARLY}",
    # A name that can be a keyword after WITH.
    "WITH TOTALS AS (SELECT 1), 'web' AS service_name SELECT 7 AS n UNION ALL SELECT count() FROM stream_revs WHERE service_name = 'web'",
    # Names that mean something else there.
    f"WITH addHours(start_time, -9) AS start_time SELECT 1 AS c UNION ALL SELECT count() FROM stream_revs WHERE {EARLY}",
    f"WITH addHours(start_time, -9) AS start_time SELECT * FROM (SELECT count() FROM stream_revs WHERE {EARLY})",
    "WITH 'web' AS service_name SELECT 1 AS c UNION DISTINCT SELECT count() FROM stream_revs WHERE service_name = 'web'",
    f"SELECT count() FROM stream_revs AS s INNER JOIN s AS q ON s.rev = q.rev WHERE s.{EARLY}",
    f"SELECT count() FROM stream_revs INNER JOIN stream_revs AS q ON stream_revs.rev = q.rev WHERE stream_revs.{EARLY}",
    f"SELECT count() FROM stream_revs AS s, s AS q WHERE s.{EARLY}",
    f"SELECT count() FROM stream_revs AS q, stream_revs WHERE stream_revs.{EARLY}",
    "WITH (SELECT now()) AS v SELECT count() FROM stream_revs AS s, values('v DateTime', '2026-11-20 00:00:05') AS n "
    "WHERE s.start_time > v",
    "WITH (SELECT now()) AS `start_time.null` SELECT count() FROM node_samples WHERE recorded_at < `start_time.null`",
    "WITH (SELECT now()) AS COLUMNS SELECT count() FROM stream_revs WHERE start_time >= toDateTime(COLUMNS('start_time$'))",
    "WITH (SELECT now()) AS arrayJoin, (SELECT 1) AS array SELECT count() FROM stream_revs "
    "WHERE start_time > toDateTime(arrayJoin(array(1, 2)))",
    # A name in a subquery is an alias for the reader, and the column of a table that is read by its key.
    "WITH 20 AS rev, (SELECT max(e.recorded_at) FROM engine_steps AS e WHERE e.step <= rev) AS later "
    "SELECT count() FROM stream_revs WHERE start_time <= later",
    "WITH (SELECT max(b.minute) FROM stream_minutes AS b WHERE b.minute <= received_at) AS later "
    "SELECT count(), toDateTime64('2026-11-21 00:00:02', 3) AS received_at FROM stream_revs WHERE start_time <= later",
    "WITH (SELECT max(e.recorded_at) FROM engine_steps AS e WHERE e.step <= rev) AS later "
    "SELECT count() FROM stream_revs ARRAY JOIN [20] AS rev WHERE start_time <= later",
    # Times at the ends of a column's type, and beyond those that ClickHouse reads.
    *(f"SELECT count() FROM stream_revs WHERE start_time {sign} {at}" for sign in SIGNS for at in ENDS),
    *(f"SELECT count() FROM stream_revs WHERE received_at {sign} {at}" for sign in SIGNS for at in LATE),
    # They fail with the key.
    "WITH (SELECT avg(step) FROM engine_steps WHERE 0) AS a SELECT count() FROM stream_revs WHERE start_time > a",
    "WITH (SELECT toBFloat16(5)) AS a SELECT count() FROM stream_revs WHERE start_time > a",
    "SELECT count() FROM stream_revs WHERE start_time > (toDateTime(5) - toDateTime(5)) / 0",
    f"WITH ({NEWEST} = a.rev) AS newest SELECT count() FROM stream_revs AS a WHERE a.start_time = newest",
    f"WITH ({NEWEST} = rev) AS newest SELECT count() FROM stream_revs WHERE start_time = newest",
)


def test_names_and_failures_change_no_result(store: Store) -> None:
    """Some fail with the conditions, and are run without them."""
    at = "toDateTime64('2026-11-20 00:00:00', 9, 'UTC') + number / 2"
    rows = f"SELECT 'shop', {at}, toFixedString(toString(number), 16), ['web', 'api'][1 + number % 2], 1 + number % 3 FROM numbers(20)"
    store.command(f"INSERT INTO stream_revs (tenant, start_time, trace_id, service_name, rev) {rows}")
    columns, own = "tenant, metric, recorded_at, start_time, host", f"SELECT 'shop', 'm', {at}, if(number % 2, {at}, NULL), 'h'"
    store.command(f"INSERT INTO node_samples ({columns}) {own} FROM numbers(20)")
    ends = "9223372036854775807, 9466848000000", "-9000000000000000000, -3000000000000"
    for number, (start_ns, received_ms) in enumerate(end.split(", ") for end in ends):
        times = f"fromUnixTimestamp64Nano({start_ns}), fromUnixTimestamp64Milli({received_ms})"
        store.command(
            f"INSERT INTO stream_revs (tenant, start_time, received_at, trace_id) SELECT 'shop', {times}, toFixedString('end {number}', 16)"
        )
    steps = f"SELECT 'shop', 'e', {at}, {at} + 1, number + 1 FROM numbers(20)"
    store.command(f"INSERT INTO engine_steps (tenant, engine_id, engine_epoch, recorded_at, step) {steps}")
    store.command(f"INSERT INTO stream_minutes (tenant, minute) SELECT 'shop', {at} + number * 60 FROM numbers(20)")
    hours = "SELECT 'shop', toDateTime64('2026-11-20 00:00:00', 9, 'UTC') + toIntervalHour(number), toFixedString('t', 16) FROM numbers(4)"
    store.command(f"INSERT INTO stream_sockets (tenant, start_time, trace_id) {hours}")
    guard, failed, answered = guard_of(store), 0, 0
    for sql in NAMED:
        statement = guard.check(sql, {}, "shop")
        expected = result_or_fails(store, statement.without_key or statement.sql)
        failed += expected != "fails" and result_or_fails(store, statement.sql) == "fails"
        answered += expected != "fails"
        try:
            assert content_of(store, statement, {}, "TabSeparated", "shop").decode() == expected, sql
        except StoreError:
            assert expected == "fails", sql
    assert failed >= 3 and answered >= 12
