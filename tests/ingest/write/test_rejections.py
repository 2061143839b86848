"""Rows of `rejected` that the store holds: exactly these are found, without a scan of the table."""

from __future__ import annotations

import json
from hashlib import sha256

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from helpers.platform.examples import examples
from legato_ingest.otlp.batch import Rejection, rejected_table
from legato_ingest.storage import Store
from legato_ingest.write.group_insert import with_received_at
from legato_ingest.write.rejections import new_rejections, rejection_keys, rejections_query, stored_rejections

NOW_NS = 1_800_000_000_000_000_000
GRANULE_ROWS = 8_192


def rejected(number: int, *, reason: str = "value", ids: bool = True, rev: int = 0, tenant: str = "shop") -> pa.Table:
    """Return a row of `rejected` that is identified by a number; without ids like the row of a data point."""
    digest = sha256(str(number).encode()).digest()
    trace, span = (digest[:16], digest[16:24]) if ids else (b"", b"")
    rejection = Rejection(reason, "detail", 9, digest, trace, span, rev, NOW_NS, "service", "emitter")
    return with_received_at(rejected_table([rejection], tenant), NOW_NS // 1_000_000)


def test_exactly_the_stored_rejections_are_left_out(store: Store) -> None:
    """Tenant, reason, ids, rev and hash are all compared; rows of several tenants and reasons are looked up in one call."""
    made = pa.concat_tables(
        rejected(number, reason=reason, ids=ids, rev=number % 2, tenant=tenant)
        for number in range(6)
        for reason in ("value", "time")
        for ids in (True, False)
        for tenant in ("shop", "it's \\ another", "")
    )
    half, rest = (made.take(list(range(first, made.num_rows, 2))) for first in (0, 1))
    store.insert("rejected", half)
    assert new_rejections(store, made) == rest
    assert new_rejections(store, rejected(0, tenant="bank")) == rejected(0, tenant="bank")
    assert new_rejections(store, made.slice(0, 0)).num_rows == 0


@given(
    data=st.data(),
    numbers=st.lists(st.integers(0, 5), min_size=1, max_size=30),
    tenants=st.lists(st.sampled_from(["a", "a\0", "\0a", "0", "", "é"]), min_size=1, max_size=3),
)
@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_of_equal_rows_the_first_is_new(store: Store, data: st.DataObject, numbers: list[int], tenants: list[str]) -> None:
    """Whatever is stored, and in whatever chunks Arrow holds the rows; texts that contain the keys' separator are not confused."""
    store.command("TRUNCATE TABLE rejected")
    keys = [(number, data.draw(st.sampled_from(tenants)), data.draw(st.integers(0, 1))) for number in numbers]
    made = pa.concat_tables(rejected(number, tenant=tenant, rev=rev) for number, tenant, rev in keys)
    stored = set(data.draw(st.lists(st.sampled_from(keys), max_size=3)))
    for number, tenant, rev in sorted(stored):
        store.insert("rejected", rejected(number, tenant=tenant, rev=rev))
    first = [at for at, key in enumerate(keys) if key not in stored and key not in keys[:at]]
    before = data.draw(st.integers(0, 3))
    sliced = pa.concat_tables([made.slice(0, before), made.slice(before)])
    assert new_rejections(store, sliced) == made.take(pa.array(first, pa.int64()))


@pytest.mark.parametrize("ids", [True, False], ids=["spans", "points"])
def test_a_lookup_of_rejections_does_not_scan_the_table(store: Store, ids: bool) -> None:
    """With 200,000 rows of the same tenant and reason it reads two granules at most, also for data points, which have no ids."""
    store.command(f"""
        INSERT INTO rejected (tenant, received_at, reason, trace_id, span_id, span_sha256)
        SELECT 'shop', now64(3), 'value', {"substring(SHA256(toString(number)), 1, 16)" if ids else "''"},
               {"substring(SHA256(toString(number)), 17, 8)" if ids else "''"}, SHA256(toString(number))
        FROM numbers(200000)""")
    store.command("OPTIMIZE TABLE rejected FINAL")
    row = rejected(77_777, ids=ids)
    assert stored_rejections(store, row) == rejection_keys(row)
    assert rows_read(store, row) <= 2 * GRANULE_ROWS + 1


def rows_read(store: Store, rows: pa.Table) -> int:
    """Return the number of rows that ClickHouse reads for a lookup of rejections."""
    return int(json.loads(store.query_bytes(rejections_query(rows), fmt="JSON"))["statistics"]["rows_read"])
