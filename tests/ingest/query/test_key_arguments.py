"""What the arguments of a listed function must be, so that a statement keeps the primary key."""

from __future__ import annotations

import pytest

from helpers.servers.reading import guard_of
from legato_ingest.storage import Store

KEPT = (
    "match(model, '^(gpt|claude)-[0-9]+(\\\\.[0-9]+)?$')",
    "match(model, '=([^&]*)')",
    "model LIKE '%gpt\\\\_4%'",
    "start_time IN ('2026-01-01 00:00:00')",
    "(start_time, rev) IN (SELECT start_time, rev FROM streams)",
    "rev IN (SELECT rev FROM streams UNION ALL SELECT rev + 1 FROM streams)",
    "has(arrayMap((name, n) -> n, mapKeys(map('a', rev)), mapValues(map('a', rev))), 5)",
    "arraySum((x, y) -> x * y, dt_us, arrayResize(chunk_bytes, length(dt_us))) > 5",
    "CAST(model, 'String') = 'a'",
    "CAST(wire_bytes, 'Nullable(Float64)') > 5",
    "round(duration_ns / 1e6, 2) > 5",
)
LOST = (
    "match(model, '(')",
    "match(model, 'a**')",
    "match(model, 'a{9999}')",
    "match(model, service_name)",
    "model LIKE 'a\\\\'",
    "model LIKE concat('a', service_name)",
    "start_time IN (SELECT 5)",
    "start_time IN (SELECT service_name FROM streams)",
    "(start_time, rev) IN (SELECT rev, start_time FROM streams)",
    "(start_time, rev) IN (SELECT * FROM streams)",
    "rev IN (SELECT rev FROM streams UNION ALL SELECT start_time FROM streams)",
    "arrayExists((x, y) -> x > y, dt_us, chunk_bytes)",
    "arrayExists((x, y) -> x > y, mapKeys(map('a', rev)), mapValues(map('b', rev)))",
    "empty(arrayResize(dt_us, rev))",
    "empty(range(rev))",
    "CAST(wire_bytes, 'Float64') > 5",
    "CAST((SELECT rev FROM streams WHERE 0), 'UInt8') > 5",
    "round(duration_ns, 400) > 5",
    "nullIf(start_time, duration_ns) > 0",
    "toStartOfInterval(start_time, INTERVAL 1 DAY, now()) > now()",
    "intDiv(1, arrayJoin([0, 1])) > 5",
    "arrayExists(x -> intDiv(1, x) > rev, [0])",
    "CAST(arrayJoin(['a', '1']), 'UInt8') > 5",
    "toDateTime(arrayJoin(['a', '1'])) > start_time",
    "arrayExists(x -> toDateTime64(x, 9) > start_time, ['garbage'])",
    "arrayExists(x -> start_time > x, ['garbage'])",
    "arrayExists(x -> rev = x, ['x'])",
    "rev + now64(9) > duration_ns",
    "addMicroseconds(received_at, wire_bytes) > start_time",
    "addNanoseconds(received_at, duration_ns) > start_time",
    "length(CAST((dt_us, chunk_kind), 'Map(UInt32, UInt32)')) > 0",
    "toString(start_time, service_name) = 'a'",
    "arrayExists((x, y) -> x > y, COLUMNS('^(dt_us|chunk_kind)$'))",
)


@pytest.mark.parametrize("condition", [*KEPT, *LOST])
def test_arguments_decide_whether_the_key_is_kept(shared_store: Store, condition: str) -> None:
    """Two arrays may differ in length, a pattern may be none, and a subquery may have values that do not convert."""
    assert guard_of(shared_store).check(f"SELECT count() FROM stream_revs WHERE {condition}", {}, "shop").by_key == (condition in KEPT)


@pytest.mark.parametrize(
    ("statement", "by_key"),
    [
        ("SELECT a FROM stream_revs ARRAY JOIN dt_us AS a", True),
        ("SELECT a, b FROM stream_revs ARRAY JOIN dt_us AS a, arrayResize(chunk_kind, length(dt_us)) AS b", True),
        ("SELECT a, b FROM stream_revs ARRAY JOIN dt_us AS a, chunk_kind AS b", False),
        ("SELECT sumMap(dt_us, chunk_kind) FROM stream_revs", False),
        ("SELECT sumMap((dt_us, chunk_kind)) FROM stream_revs", False),
        ("SELECT arrayMap((x, y) -> x, *) FROM (SELECT dt_us, chunk_kind FROM stream_revs)", False),
        ("SELECT count() FROM stream_revs ARRAY JOIN [0] AS z WHERE intDiv(1, z) > 5", False),
        ("SELECT count() FROM (SELECT 0 AS z FROM stream_revs UNION ALL SELECT 1 FROM stream_revs) WHERE intDiv(1, z) > 5", False),
        ("SELECT sumMapIf(map(rev, 1), rev > 1) FROM stream_revs", True),
        ("SELECT argMaxArrayIf(dt_us, chunk_kind, 1) FROM stream_revs", False),
        ("SELECT lagInFrame(rev, 1) OVER (ORDER BY start_time) FROM stream_revs", True),
        ("SELECT lagInFrame(rev, rev - 5) OVER (ORDER BY start_time) FROM stream_revs", False),
    ],
)
def test_arrays_of_different_lengths_lose_the_key(shared_store: Store, statement: str, by_key: bool) -> None:
    """ARRAY JOIN and aggregates fail on them, and a window function on a negative offset."""
    assert guard_of(shared_store).check(statement, {}, "shop").by_key == by_key
