"""How large the constants of a statement can be."""

from __future__ import annotations

import pytest

from helpers.servers.reading import guard_of
from legato_ingest.storage import Store

NEAR = (
    "now() - INTERVAL 7 DAY - INTERVAL 3 HOUR",
    "now64(9) - toIntervalYear(60)",
    "addMonths(today(), -3)",
    "toDateTime64('2026-01-01 00:00:00.5', 3)",
    "toDateTime64(1790000000, 3)",
    "fromUnixTimestamp64Milli(1790000000000) - INTERVAL 1 HOUR",
    "toStartOfInterval(now64(3), INTERVAL 1 DAY)",
    "{at:DateTime64(3)}",
    "{at:DateTime}",
    "fromUnixTimestamp64Milli({ms:Int64})",
    "greatest(now(), toDateTime('2026-01-01 00:00:00'))",
    "toDateTime(9000000000000)",
)
FAR = (
    "addYears(now64(3), 260)",
    "now64(3) + INTERVAL 61 YEAR",
    "now64(3) + INTERVAL 40 YEAR + INTERVAL 40 YEAR",
    "toDateTime64('2299-01-01 00:00:00', 3)",
    "toDateTime64('9999999999', 0)",
    "toDateTime64(9999999999, 0)",
    "{far:DateTime64(3)}",
    "CAST('2299-01-01 00:00:00', 'DateTime64(0)')",
    "fromUnixTimestamp64Milli(9999999999999)",
    "now64(3) + toIntervalSecond(inf * 0)",
    "toStartOfInterval(start_time, INTERVAL 9223372036854775807 MILLISECOND)",
)


@pytest.mark.parametrize("constant", [*NEAR, *FAR])
def test_only_near_times_keep_the_key(shared_store: Store, constant: str) -> None:
    """ClickHouse converts a constant to nanoseconds for each part, also for a reader without rows in it."""
    guard = guard_of(shared_store)
    values = {"at": "2026-01-01 00:00:00", "ms": "1790000000000", "far": "2299-01-01 00:00:00"}
    sql = f"SELECT count() FROM stream_revs WHERE start_time > {constant}"
    assert guard.check(sql, values, "shop").by_key == (constant in NEAR)
    with_name = f"WITH {constant} AS limit_time SELECT count() FROM stream_revs WHERE start_time > limit_time"
    assert guard.check(with_name, values, "shop").by_key == (constant in NEAR)
