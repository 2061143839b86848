"""Deduplication: exactly the stored rows are found, for any times, tenants and ids, and a lookup does not scan a table."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from helpers.builders.batches import received_spans
from helpers.builders.converted import convert_body
from helpers.builders.spans import SECOND_NS, native_span, request
from helpers.builders.worst_bodies import spans, steps
from helpers.platform.examples import examples
from helpers.servers.committing import StoreDouble
from legato_ingest.columns import STREAM_SILENCES, TABLES
from legato_ingest.errors import StoreRefused
from legato_ingest.otlp.batch import Limits
from legato_ingest.storage import Store
from legato_ingest.storage.sql import quoted
from legato_ingest.write.dedup import TIMED_TABLES, TimedTable, halving, in_minutes, new_rows, stored_streams, stream_keys

NOW_NS = time.time_ns() // SECOND_NS * SECOND_NS
MINUTE_NS = 60 * SECOND_NS


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


@pytest.mark.parametrize("around", [0, 1])
def test_of_each_tenant_the_minutes_with_its_rows_are_read(store: Store, around: int) -> None:
    """A body of one tenant with rows of twenty hours had those of twenty hours read of every tenant: 3 s for an insert."""
    hours, rows, hour_ns = 20, 60_000, 60 * MINUTE_NS
    first_ns = NOW_NS // MINUTE_NS * MINUTE_NS - hours * hour_ns
    start = f"fromUnixTimestamp64Nano({first_ns} + number * {hours * hour_ns // rows})"
    for tenant in ("honest", "it's \\ another"):
        columns = f"{quoted(tenant)}, {start}, leftPad(toString(number), 8, '0')"
        store.command(f"INSERT INTO stream_revs (tenant, start_time, span_id) SELECT {columns} FROM numbers({rows})")
    places = [("honest", NOW_NS - 5 * MINUTE_NS), *(("it's \\ another", NOW_NS - hour * hour_ns) for hour in range(1, hours))]
    tenants, times_ns = zip(*places, strict=True)
    condition = in_minutes("start_time", pa.chunked_array([pa.array(tenants)]), np.array(times_ns), around)
    minute = "intDiv(toUnixTimestamp64Second(start_time), 60)"
    found = store.select(f"SELECT DISTINCT tenant, {minute} FROM stream_revs WHERE {condition}")
    beside = range(-around, around + 1)
    assert {(str(tenant), int(at)) for tenant, at in found} == {(name, at // MINUTE_NS + step) for name, at in places for step in beside}
    ((read,),) = store.select(f"SELECT sum(rows) FROM (EXPLAIN ESTIMATE SELECT span_id FROM stream_revs WHERE {condition})")
    assert int(read) < 1.5 * rows


def test_rows_of_as_many_engines_as_a_slice_has_are_looked_up(store: Store) -> None:
    """ClickHouse refuses a query with a literal for each of 65,536 engines, which a body of 2 MB has."""
    ids = [f"{number:08x}" for number in range(65_536)] + ["it's\0", ""]
    body = spans([steps(NOW_NS - 3600 * SECOND_NS, 1, 1)])
    one = convert_body(body, tenant="a", now_ns=NOW_NS, limits=Limits(), on_fault=print).steps
    many = one.take([0] * len(ids)).set_column(one.column_names.index("engine_id"), one.schema.field("engine_id"), pa.array(ids))
    (table,) = (each for each in TIMED_TABLES if each.rows == "steps")
    stored = pa.concat_tables([many.slice(7, 1), many.slice(len(ids) - 2)])
    at = stored.column_names.index("received_at")
    store.insert(
        "engine_steps", stored.set_column(at, stored.schema.field(at), stored["recorded_at"].cast(stored.schema.field(at).type, safe=False))
    )
    assert table.stored(store, many) == set(table.keys(stored))


class Asked(StoreDouble):
    """A store that remembers the length of each query, and how many rows it returned."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.lengths, self.found = list[int](), list[int]()

    def select_arrow(self, sql: str) -> pa.Table:
        """Remember the query."""
        rows = self._store.select_arrow(sql)
        self.lengths.append(len(sql))
        self.found.append(rows.num_rows)
        return rows


def keyed(table: TimedTable, keys: Sequence[tuple[Any, ...]]) -> pa.Table:
    """Return rows with these keys, all other columns empty."""
    columns = {**TABLES, "stream_silences": STREAM_SILENCES}[table.table].columns
    values = dict(zip((*table.key, "recorded_at"), zip(*keys, strict=True), strict=True))
    empty = {"tenant": "", "metric": "m", "received_at": 1}
    return pa.table({each.name: pa.array(values.get(each.name, [empty.get(each.name)] * len(keys)), each.type) for each in columns})


LAST: dict[str, Callable[[int], tuple[Any, ...]]] = {
    "stream_silences": lambda number: (b"%016d" % number, b"%08d" % number),
    "engine_steps": lambda number: (f"e{number % 3}", number),
    "engine_requests": lambda number: (f"e{number % 3}", f"r{number}"),
    "node_samples": lambda number: (number,),
}


@pytest.mark.parametrize("table", TIMED_TABLES, ids=lambda table: table.table)
def test_rows_of_one_time_are_not_all_returned(store: Store, table: TimedTable) -> None:
    """A body of 2 KB stores 300,000 rows with one time, and each later row of that time had them all returned."""
    at_ns = NOW_NS - 3600 * SECOND_NS
    keys = [("a", *LAST[table.table](number), at_ns + number % 2) for number in range(2_000)]
    store.insert(table.table, keyed(table, keys[:1_000]))
    double = Asked(store)
    asked = keys[990:1_010]
    assert table.stored(cast(Store, double), keyed(table, asked)) == set(keys[990:1_000])
    assert sum(double.found) == 10


def test_other_traces_and_revs_of_a_span_are_not_returned(store: Store) -> None:
    """A sender can give one span id to any number of traces, and any number of revs to a stream. Of these, the highest counts."""
    table = rows([NOW_NS], 1)
    places = [table.column_names.index(name) for name in ("trace_id", "rev")]
    for number in range(1, 30):
        other = table.set_column(places[0], "trace_id", pa.array([b"%016d" % number], pa.binary(16)))
        store.insert("stream_revs", other)
        store.insert("stream_revs", table.set_column(places[1], "rev", pa.array([number], pa.uint32())))
    double = Asked(store)
    assert stored_streams(cast(Store, double), [table]) == {(*stream_keys(table)[0][:3], 29)} and double.found == [1]


def test_a_query_names_the_texts_of_its_rows_alone(store: Store) -> None:
    """Long engine ids at many times: the queries are short, and together not much longer than the ids."""
    (table,) = (each for each in TIMED_TABLES if each.rows == "steps")
    keys = [("a", f"{number:08x}" * 125, 1, NOW_NS - number % 15 * 120 * SECOND_NS) for number in range(5_000)]
    double = Asked(store)
    assert not table.stored(cast(Store, double), keyed(table, keys))
    assert sum(double.lengths) < 3 * 5_000 * 1_000
    one_time = [(tenant, engine, step, NOW_NS) for tenant, engine, step, _ in keys]
    assert not table.stored(cast(Store, double), keyed(table, one_time))
    assert max(double.lengths) < 6 * 2**20


@given(st.integers(0, 40), st.integers(1, 40))
@examples(30)
def test_a_look_up_that_is_refused_is_divided(count: int, most: int) -> None:
    """Into pieces that the store takes, with all rows in their order; a single row that it refuses is an error."""
    sizes = list[int]()

    def look_up(rows: pa.Table) -> list[int]:
        if rows.num_rows > most:
            raise StoreRefused("Query tree is too big", 36)
        sizes.append(rows.num_rows)
        return [int(number) for number in rows["x"].to_pylist()]

    table = pa.table({"x": list(range(count))})
    assert [number for found in halving(look_up, table) for number in found] == list(range(count))
    assert len(sizes) <= max(1, 4 * count // most)
    most = 0
    if count:
        with pytest.raises(StoreRefused):
            halving(look_up, table)
