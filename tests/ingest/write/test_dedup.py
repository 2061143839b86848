"""Which rows the store has already: exactly those, whatever the times, tenants and ids."""

from __future__ import annotations

import random
import time

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.builders.batches import received_spans
from helpers.builders.spans import SECOND_NS, native_span, request
from legato_ingest.otlp.batch import Limits
from legato_ingest.storage import Store
from legato_ingest.write.dedup import stored_streams, stream_keys

NOW_NS = time.time_ns() // SECOND_NS * SECOND_NS


def rows(starts: list[int], seed: int, tenant: str = "") -> pa.Table:
    """Rows of streams with these starts."""
    rng, body = random.Random(seed), request()
    for start in starts:
        native_span(body, start_ns=start, rng=rng)
    return received_spans(body, tenant=tenant, now_ns=NOW_NS, limits=Limits(retention_days=0)).revs


def test_nothing_is_known_of_an_empty_store(store: Store) -> None:
    """And of no rows nothing is asked."""
    table = rows([NOW_NS], 1)
    assert stored_streams(store, [table]) == set()
    assert stored_streams(store, [table.slice(0, 0)]) == set() and stream_keys(table.slice(0, 0)) == []


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
    found = stored_streams(store, [table.slice(0, 3), table.slice(3)])
    assert found & set(stream_keys(table)) == set(stream_keys(stored))


def test_the_same_span_of_another_tenant_trace_or_rev_is_not_known(store: Store) -> None:
    """All four parts of the identity count."""
    store.insert("stream_revs", rows([NOW_NS], 1))
    others = rows([NOW_NS], 1, tenant="it's \\ another")
    assert not stored_streams(store, [others]) & set(stream_keys(others))
    table = rows([NOW_NS], 1)
    at = table.column_names.index("rev")
    later = table.set_column(at, "rev", pa.array([2], pa.uint32()))
    assert not stored_streams(store, [later]) & set(stream_keys(later))
    moved = table.set_column(table.column_names.index("trace_id"), "trace_id", pa.array([b"x" * 16], pa.binary(16)))
    assert not stored_streams(store, [moved]) & set(stream_keys(moved))
