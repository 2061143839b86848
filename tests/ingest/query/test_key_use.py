"""Which statements of a tenant's readers use the primary key: those in which no function can fail on the value of a row."""

from __future__ import annotations

import time

import pytest

from helpers.servers.reading import guard_of
from legato_ingest.errors import StoreError
from legato_ingest.storage import Store


def uses_key(store: Store, sql: str) -> bool:
    """Return what the guard finds about a statement of a reader of one tenant."""
    bound = {"since": "2026-01-01 00:00:00", "least": "5"} if "{" in sql else {}
    return guard_of(store).check(sql, bound, "shop").by_key


@pytest.mark.parametrize(
    "condition",
    [
        "start_time >= toDateTime(1790000000) AND start_time < now64(9) - INTERVAL 1 HOUR",
        "toStartOfHour(start_time) = toStartOfHour(now())",
        "toStartOfInterval(toDateTime(start_time), INTERVAL 60 second) > now()",
        "toUnixTimestamp(start_time) > 5",
        "start_time BETWEEN fromUnixTimestamp64Nano(5, 'UTC') AND fromUnixTimestamp64Milli(7, 'UTC')",
        "trace_id = CAST(unhex('00') AS FixedString(16)) AND lower(service_name) LIKE 'a%'",
        "(tenant, start_time, trace_id, span_id) IN (SELECT tenant, start_time, trace_id, span_id FROM streams)",
        "start_time > (SELECT max(start_time) FROM streams)",
        "addNanoseconds(start_time, duration_ns) > now64(9)",
        "rev > 5 AND rev IN (6, 7) AND rev + 1 > 5",
        "duration_ns / 1e9 > intDiv(ttft_us, 1000)",
        "start_time > {since:DateTime64(9)} AND start_time > {since:DateTime} AND rev > {least:UInt8} AND rev > 5::UInt32",
        "arrayExists(duration_ns -> duration_ns - 5 > 1, dt_us)",
        "fromUnixTimestamp64Nano(toUnixTimestamp64Nano(start_time) + 1000 * gap_max_us) > now64(9)",
        "if(service_name = 'a', start_time, received_at) > toDateTime64('2026-01-01', 9)",
    ],
)
def test_what_people_ask_uses_the_key(store: Store, condition: str) -> None:
    """Ranges of time, ids, names, and arithmetic on numbers."""
    assert uses_key(store, f"SELECT count() FROM stream_revs WHERE {condition}")


@pytest.mark.parametrize(
    "statement",
    [
        "WITH 5 AS span_s SELECT count() FROM stream_revs WHERE start_time > now() - toIntervalSecond(span_s)",
        "SELECT sum(n) FROM (SELECT count() AS n FROM stream_minutes UNION ALL SELECT count() FROM stream_hours) WHERE toUInt64(n) > 5",
        "SELECT sum(streams) FROM (SELECT * FROM stream_minutes UNION ALL SELECT * FROM stream_hours) WHERE toInt64(streams) > 5",
        "SELECT max(start_time) AS `last, UTC`, arrayMap((a, b) -> a - b, dt_us, dt_us) FROM stream_revs "
        "GROUP BY dt_us ORDER BY `last, UTC`",
    ],
)
def test_names_of_a_statement_have_the_kinds_of_what_they_stand_for(store: Store, statement: str) -> None:
    """Aliases, columns of a UNION and parameters of lambdas."""
    assert uses_key(store, statement)


@pytest.mark.parametrize(
    "statement",
    [
        *(
            f"SELECT count() FROM stream_revs WHERE {condition}"
            for condition in (
                "toInt64(start_time) - 5 + toDecimal64(0, 9) = 5",
                "intDiv(1, toInt64(start_time) - 5) = 1",
                "intDiv(exp(rev), 5) = 1",
                "toUInt8(exp(rev)) = 1",
                "CAST(rev / 5, 'Int64') = 1",
                "start_time + INTERVAL 9223372036 SECOND > now()",
                "toUnixTimestamp(addYears(start_time, 80)) = 1",
                "start_time > CAST('1' AS NUMERIC(76, 40))",
                "start_time > (now64(9) - now64(9)) * (now64(9) - now64(9))",
                "start_time > (SELECT (now64(9) - now64(9)) * (now64(9) - now64(9)))",
                "rev > toDateTime64('2020-01-01 00:00:00', 9)",
                "rev > {since:DateTime64(9)}",
                "start_time > {least:Decimal(20, 15)}",
                "toUInt64(service_name) = 1",
                "CAST(service_name AS UInt64) = 1",
                "arrayExists(x -> x - 5 > 1, [start_time])",
                "plus(COLUMNS('^start_time$'), INTERVAL 5 SECOND) > now()",
                "((start_time AS `x.rev`) > 0) AND `x.rev` + 5 > 0",
                "addNanoseconds(start_time, 9223372036854775807) > now64(9)",
            )
        ),
        "SELECT 1 FROM (SELECT * REPLACE (start_time AS duration_ns) FROM stream_revs) WHERE duration_ns - 5 > 1",
        "WITH (now64(9) - now64(9)) * (now64(9) - now64(9)) AS k SELECT 1 FROM stream_revs WHERE start_time > k",
        "SELECT 1 FROM (SELECT start_time AS duration_ns FROM stream_revs) WHERE duration_ns - 5 > 1",
        "SELECT 1 FROM (SELECT 5 AS z UNION ALL SELECT start_time FROM stream_revs) WHERE z - 5 > 1",
        "SELECT 1 FROM (SELECT NULL AS z UNION ALL SELECT start_time FROM stream_revs) WHERE z - 5 > 1",
        "SELECT 1 FROM (SELECT NULL AS z FROM stream_revs) WHERE z - 5 > 1",
        "SELECT 1 FROM (SELECT rev AS z FROM stream_revs UNION ALL SELECT exp(step) FROM engine_steps) WHERE toUInt64(z) > 1",
        "SELECT 1 FROM (SELECT rev FROM stream_revs UNION ALL SELECT * FROM (SELECT 5 UNION ALL SELECT start_time FROM stream_revs)) "
        "WHERE rev - 5 > 1",
        "WITH a AS (SELECT rev FROM stream_revs), b AS (SELECT exp(step) FROM engine_steps) "
        "SELECT toUInt64(rev) FROM (SELECT * FROM a UNION ALL SELECT * FROM b)",
        "SELECT addNanoseconds(start_time, duration_ns) FROM (SELECT start_time, duration_ns FROM stream_revs UNION ALL "
        "SELECT start_time, 9223372036854775807 FROM stream_revs)",
        "WITH duration_ns -> duration_ns + INTERVAL 5 SECOND AS lower SELECT lower(start_time) FROM stream_revs",
        "SELECT 1 FROM stream_revs AS a INNER JOIN engine_steps AS b ON a.start_time = b.engine_epoch "
        "WHERE b.engine_epoch + INTERVAL 5 SECOND > 0",
        "SELECT arrayMap(rev -> (SELECT count() FROM stream_revs WHERE start_time + INTERVAL 5 SECOND > 0), [1])",
        "SELECT x.y + 5 FROM (SELECT start_time AS `x.y` FROM stream_revs)",
    ],
)
def test_what_may_fail_on_a_value_reads_all_rows(store: Store, statement: str) -> None:
    """Arithmetic on times, conversions, and comparisons that scale a value, under whatever name."""
    assert not uses_key(store, statement)


def test_a_hostile_statement_is_read_in_bounded_time(store: Store) -> None:
    """The guard decides on a thread that acknowledgements wait for: aliases of aliases, long literals, deep and wide statements."""
    chain = ", ".join(f"{' + '.join([f'a{n}'] * 8)} AS a{n + 1}" for n in range(10))
    reverse = ", ".join(f"a{n + 1} AS a{n}" for n in range(2_000))
    nested = "x0"
    for n in range(60):
        nested = f"arrayMap(x{n} -> {nested}, [x{n + 1}])" if n < 59 else f"arrayMap(x{n} -> {nested}, [1])"
    statements = (
        f"WITH 1 AS a0, {chain} SELECT count() FROM stream_revs WHERE start_time > a10",
        f"WITH {reverse}, 1 AS a2000 SELECT count() FROM stream_revs WHERE start_time > a0",
        f"SELECT '{' (alias )' * 15_000}' FROM stream_revs",
        f"SELECT {'abs(' * 200}rev{')' * 200} FROM stream_revs",
        f"SELECT {', '.join(f'rev + {n}' for n in range(8_000))} FROM stream_revs",
        f"SELECT {nested}",
        f"SELECT arrayMap(x -> {' + '.join(['x'] * 1_000)}, {', '.join(['dt_us'] * 500)}) FROM stream_revs",
        "SELECT 1 FROM " + ", ".join(f"stream_revs AS a{n} FINAL" for n in range(1_500)),
    )
    for sql in statements:
        began = time.process_time()
        try:
            uses_key(store, sql)
        except StoreError:
            pass
        assert time.process_time() - began < 10, sql[:80]
