"""Deduplication: exactly the stored rows are found, for any times, tenants and ids, and a lookup does not scan a table."""

from __future__ import annotations

import json
import random
import time
from hashlib import sha256

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from helpers.builders.batches import received_spans
from helpers.builders.spans import SECOND_NS, native_span, request
from helpers.platform.examples import examples
from legato_ingest.otlp.batch import Limits, Rejection, rejected_table
from legato_ingest.storage import Store
from legato_ingest.write.dedup import (
    RejectionKey,
    new_rows,
    rejection_keys,
    rejections_query,
    stored_rejections,
    stored_streams,
    stream_keys,
)
from legato_ingest.write.group_insert import with_received_at

NOW_NS = time.time_ns() // SECOND_NS * SECOND_NS
GRANULE_ROWS = 8192


def rows(starts: list[int], seed: int, tenant: str = "") -> pa.Table:
    """Return rows of streams with these starts."""
    rng, body = random.Random(seed), request()
    for start in starts:
        native_span(body, start_ns=start, rng=rng)
    return received_spans(body, tenant=tenant, now_ns=NOW_NS, limits=Limits(retention_days=0)).revs


def test_new_rows_keeps_the_first_of_equal_keys() -> None:
    """Rows with seen keys are left out, and so are repetitions; all keys are seen afterwards."""
    seen = {1}
    table = pa.table({"x": ["a", "b", "c", "d"]})
    assert new_rows(table, [1, 2, 2, 3], seen)["x"].to_pylist() == ["b", "d"]
    assert seen == {1, 2, 3} and new_rows(table, [4, 5, 6, 7], seen) is table


def test_nothing_is_found_in_an_empty_store(store: Store) -> None:
    """Without rows no query is sent."""
    table = rows([NOW_NS], 1)
    assert stored_streams(store, [table]) == set()
    assert stored_streams(store, [table.slice(0, 0)]) == set() and stream_keys(table.slice(0, 0)) == []


@given(st.lists(st.integers(0, 600 * 86_400 * SECOND_NS), min_size=1, max_size=12), st.data())
@examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_exactly_the_stored_streams_are_found(store: Store, ages: list[int], data: st.DataObject) -> None:
    """For any rows of which any subset is stored, that subset is found, including rows in the first and last ns of a minute."""
    store.command("TRUNCATE TABLE stream_revs")
    table = rows(
        [NOW_NS - age for age in ages] + [NOW_NS // 60_000_000_000 * 60_000_000_000 - i for i in (0, 1)], data.draw(st.integers(0, 9))
    )
    mask = data.draw(st.lists(st.booleans(), min_size=table.num_rows, max_size=table.num_rows))
    stored = table.filter(pa.array(mask))
    store.insert("stream_revs", stored)
    found = stored_streams(store, [table.slice(0, 3), table.slice(3)])
    assert found & set(stream_keys(table)) == set(stream_keys(stored))


def test_a_span_of_another_tenant_trace_or_rev_is_not_found(store: Store) -> None:
    """All four parts of the key are compared."""
    store.insert("stream_revs", rows([NOW_NS], 1))
    others = rows([NOW_NS], 1, tenant="it's \\ another")
    assert not stored_streams(store, [others]) & set(stream_keys(others))
    table = rows([NOW_NS], 1)
    at = table.column_names.index("rev")
    later = table.set_column(at, "rev", pa.array([2], pa.uint32()))
    assert not stored_streams(store, [later]) & set(stream_keys(later))
    moved = table.set_column(table.column_names.index("trace_id"), "trace_id", pa.array([b"x" * 16], pa.binary(16)))
    assert not stored_streams(store, [moved]) & set(stream_keys(moved))


def rejected(number: int, *, reason: str = "value", ids: bool = True, rev: int = 0, tenant: str = "shop") -> pa.Table:
    """Return a row of `rejected` that is identified by a number; without ids like the row of a data point."""
    digest = sha256(str(number).encode()).digest()
    trace, span = (digest[:16], digest[16:24]) if ids else (b"", b"")
    rejection = Rejection(reason, "detail", 9, digest, trace, span, rev, NOW_NS, "service", "emitter")
    return with_received_at(rejected_table([rejection], tenant), NOW_NS // 1_000_000)


def test_exactly_the_stored_rejections_are_found(store: Store) -> None:
    """Tenant, reason, ids, rev and hash are all compared; rows of several tenants and reasons are found in one call."""
    made = pa.concat_tables(
        rejected(number, reason=reason, ids=ids, rev=number % 2, tenant=tenant)
        for number in range(6)
        for reason in ("value", "time")
        for ids in (True, False)
        for tenant in ("shop", "it's \\ another")
    )
    half = made.take(list(range(0, made.num_rows, 2)))
    store.insert("rejected", half)
    assert stored_rejections(store, made) == set(rejection_keys(half))
    assert stored_rejections(store, rejected(0, tenant="bank")) == set() == stored_rejections(store, made.slice(0, 0))


@pytest.mark.parametrize("ids", [True, False], ids=["spans", "points"])
def test_a_lookup_of_rejections_does_not_scan_the_table(store: Store, ids: bool) -> None:
    """With 200,000 rows of the same tenant and reason it reads two granules at most, also for data points, which have no ids."""
    store.command(f"""
        INSERT INTO rejected (tenant, received_at, reason, trace_id, span_id, span_sha256)
        SELECT 'shop', now64(3), 'value', {"substring(SHA256(toString(number)), 1, 16)" if ids else "''"},
               {"substring(SHA256(toString(number)), 17, 8)" if ids else "''"}, SHA256(toString(number))
        FROM numbers(200000)""")
    store.command("OPTIMIZE TABLE rejected FINAL")
    (key,) = keys = rejection_keys(rejected(77_777, ids=ids))
    assert stored_rejections(store, rejected(77_777, ids=ids)) == {key}
    assert rows_read(store, keys) <= 2 * GRANULE_ROWS + len(keys) < 20_000


def rows_read(store: Store, keys: list[RejectionKey]) -> int:
    """Return the number of rows that ClickHouse reads for a lookup of rejections."""
    # Settings of the query are left out: a reader may not change them.
    sql = rejections_query(keys).partition("SETTINGS")[0]
    return int(json.loads(store.query_bytes(sql, fmt="JSON"))["statistics"]["rows_read"])
