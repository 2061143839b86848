"""Which rows the store has already: exactly those, whatever the times, tenants and ids."""

from __future__ import annotations

import random
import time

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.builders.spans import SECOND_NS, native_span, request
from legato_ingest.otlp.stream_rows import Limits, rows_of
from legato_ingest.storage import Store
from legato_ingest.write.dedup import keys_of, known_keys

NOW_NS = time.time_ns() // SECOND_NS * SECOND_NS


def rows(starts: list[int], seed: int, tenant: str = "") -> pa.Table:
    """Rows of streams with these starts."""
    rng, body = random.Random(seed), request()
    for start in starts:
        native_span(body, start_ns=start, rng=rng)
    return rows_of(body, tenant=tenant, received_at_ns=NOW_NS, limits=Limits(retention_days=0)).revs


def test_nothing_is_known_of_an_empty_store(store: Store) -> None:
    """And of no rows nothing is asked."""
    table = rows([NOW_NS], 1)
    assert known_keys(store, [table]) == set()
    assert known_keys(store, [table.slice(0, 0)]) == set() and keys_of(table.slice(0, 0)) == []


@given(st.lists(st.integers(0, 600 * 86_400 * SECOND_NS), min_size=1, max_size=12), st.data())
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_known_are_exactly_the_stored(store: Store, ages: list[int], data: st.DataObject) -> None:
    """Of any rows, any subset stored: those and no others are found, also those in the first and last ns of a minute."""
    store.command("TRUNCATE TABLE stream_revs")
    table = rows(
        [NOW_NS - age for age in ages] + [NOW_NS // 60_000_000_000 * 60_000_000_000 - i for i in (0, 1)], data.draw(st.integers(0, 9))
    )
    mask = data.draw(st.lists(st.booleans(), min_size=table.num_rows, max_size=table.num_rows))
    stored = table.filter(pa.array(mask))
    store.insert("stream_revs", stored)
    found = known_keys(store, [table.slice(0, 3), table.slice(3)])
    assert found & set(keys_of(table)) == set(keys_of(stored))


def test_the_same_span_of_another_tenant_trace_or_rev_is_not_known(store: Store) -> None:
    """All four parts of the identity count."""
    store.insert("stream_revs", rows([NOW_NS], 1))
    others = rows([NOW_NS], 1, tenant="it's \\ another")
    assert not known_keys(store, [others]) & set(keys_of(others))
    table = rows([NOW_NS], 1)
    at = table.column_names.index("rev")
    later = table.set_column(at, "rev", pa.array([2], pa.uint32()))
    assert not known_keys(store, [later]) & set(keys_of(later))
    moved = table.set_column(table.column_names.index("trace_id"), "trace_id", pa.array([b"x" * 16], pa.binary(16)))
    assert not known_keys(store, [moved]) & set(keys_of(moved))
