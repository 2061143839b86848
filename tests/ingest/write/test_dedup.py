"""Deduplication: exactly the stored rows are found, for any times, tenants and ids, and a lookup does not scan a table."""

from __future__ import annotations

import random
import time

import pyarrow as pa
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from helpers.builders.batches import received_spans
from helpers.builders.spans import SECOND_NS, native_span, request
from helpers.platform.examples import examples
from legato_ingest.otlp.batch import Limits
from legato_ingest.storage import Store
from legato_ingest.write.dedup import new_rows, stored_streams, stream_keys

NOW_NS = time.time_ns() // SECOND_NS * SECOND_NS


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
