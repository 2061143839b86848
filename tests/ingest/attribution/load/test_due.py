"""Streams that are due: joined conditions select the same rows as the separate ones, and a list of spans the same as a condition."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.builders.spans import SECOND_NS, native_span, request, steady_timeline
from helpers.builders.world_spans import put
from legato_ingest.attribution.load import due as module
from legato_ingest.attribution.load.due import Due, due_by_receipt, joined
from legato_ingest.storage import Store

START_NS = 1_700_000_000 * SECOND_NS
DAY_NS = 86_400 * SECOND_NS
STREAMS = 12
RECEIVED_NS = START_NS + 3_600 * SECOND_NS


@pytest.fixture
def filled(store: Store) -> Store:
    """A store with a stream a second, of which one in three is a server's."""
    for number in range(STREAMS):
        body = request({"service.name": f"service-{number % 2}"})
        named = {"legato.stream.timeline": steady_timeline(3, 300_000), "legato.stream.vantage": "server" if number % 3 == 0 else "client"}
        native_span(body, named, start_ns=START_NS + number * SECOND_NS, duration_ns=SECOND_NS)
        put(store, body, RECEIVED_NS + number * SECOND_NS)
    return store


def rows_of(store: Store, due: list[Due]) -> list[int]:
    """Return the starts (s after the first) of the due rows; a row that several are about appears as often."""
    sql = "SELECT toInt64(toUnixTimestamp64Second(start_time)) FROM stream_revs WHERE {inside} AND {which}"
    found = [int(at) for each in due for (at,) in store.select(sql.format(inside=each.inside, which=each.which))]
    return sorted(at - START_NS // SECOND_NS for at in found)


conditions = st.sampled_from(["1", "vantage = 'server'", "service_name = 'service-1'", "received_at < now() AND span_id != ''"])
keys = st.sampled_from(["1", "cityHash64(span_id) % 2 = 0", "trace_id != ''"])


@st.composite
def dues(draw: st.DrawFn) -> Due:
    """Any stretch of these seconds, with any conditions."""
    low, high = sorted(draw(st.tuples(st.integers(-1, STREAMS), st.integers(-1, STREAMS))))
    return Due(START_NS + low * SECOND_NS, START_NS + high * SECOND_NS, draw(conditions), draw(keys))


def test_joined_streams_are_the_same_streams(filled: Store) -> None:
    """Each once, and no two of the results overlap."""

    @settings(max_examples=60, deadline=None)
    @given(st.lists(dues(), max_size=5))
    def check(due: list[Due]) -> None:
        out = joined(due)
        assert rows_of(filled, out) == sorted(set(rows_of(filled, due)))
        assert all(one.high_ns < other.low_ns for one, other in zip(out, out[1:], strict=False))

    check()


def test_due_streams_become_a_list_of_spans(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list has the same rows, by the primary key alone. Too many streams for a list keep their condition."""
    (listed,) = due_by_receipt(filled, 0, 2**42)
    assert listed.which == "1" and rows_of(filled, [listed]) == list(range(STREAMS))
    monkeypatch.setattr(module, "_SPANS_MAX", 3)
    (condition,) = due_by_receipt(filled, 0, 2**42)
    assert condition.which != "1" and condition.keys == "1" and rows_of(filled, [condition]) == list(range(STREAMS))


@pytest.mark.parametrize("spans_max", [0, 16_000])
def test_streams_of_a_tenant_that_is_left_out_are_not_due(store: Store, monkeypatch: pytest.MonkeyPatch, spans_max: int) -> None:
    """Also with the span ids of another one that are due."""
    monkeypatch.setattr(module, "_SPANS_MAX", spans_max)
    for tenant in ("own", "other"):
        body = request()
        native_span(
            body, {"legato.stream.timeline": steady_timeline(3, 300_000)}, trace_id=b"t" * 16, span_id=b"same-ids", start_ns=START_NS
        )
        put(store, body, RECEIVED_NS, tenant)
    (due,) = due_by_receipt(store, 0, 2**42, tenants="tenant NOT IN ('other')")
    sql = f"SELECT tenant FROM stream_revs WHERE {due.inside} AND {due.which}"
    assert [tuple(row) for row in store.select(sql)] == [("own",)]


def _put_stream(store: Store, start_ns: int, received_ns: int, trace_id: bytes | None = None) -> None:
    body = request()
    native_span(body, {"legato.stream.timeline": steady_timeline(3, 300_000)}, start_ns=start_ns, duration_ns=SECOND_NS, trace_id=trace_id)
    put(store, body, received_ns)


@pytest.mark.parametrize("stretches_max", [3, 16])
def test_new_streams_of_many_days_are_due_once(store: Store, monkeypatch: pytest.MonkeyPatch, stretches_max: int) -> None:
    """Whether each day is looked at alone or all as one; an earlier stream between them is not due."""
    monkeypatch.setattr(module, "_STRETCHES_MAX", stretches_max)
    days = [0, 2, 3, 9, 20]
    for day in days:
        _put_stream(store, START_NS - day * DAY_NS, RECEIVED_NS)
    _put_stream(store, START_NS - 5 * DAY_NS, RECEIVED_NS - SECOND_NS)
    due = due_by_receipt(store, RECEIVED_NS // 10**6 - 1, RECEIVED_NS // 10**6)
    assert len(due) == (1 if stretches_max < len(days) else len(days))
    assert rows_of(store, due) == [-day * DAY_NS // SECOND_NS for day in reversed(days)]


def test_the_other_vantages_of_a_trace_are_due_as_far_as_clocks_differ(store: Store) -> None:
    """Two hours apart they are those of one response; five hours before it, an earlier response of a long trace."""
    hour_ns, trace_id = 3_600 * SECOND_NS, bytes(range(1, 17))
    for hours in (-5, -2, 0, 2):
        _put_stream(store, START_NS + hours * hour_ns, RECEIVED_NS if not hours else RECEIVED_NS - SECOND_NS, trace_id)
    due = due_by_receipt(store, RECEIVED_NS // 10**6 - 1, RECEIVED_NS // 10**6)
    assert rows_of(store, due) == [-7_200, 0, 7_200]


@pytest.mark.parametrize("stretches_max", [1, 16])
def test_the_last_moment_hides_no_other_stream(store: Store, monkeypatch: pytest.MonkeyPatch, stretches_max: int) -> None:
    """A stream at the end of DateTime64 is due, and so are those that are looked for together with it."""
    monkeypatch.setattr(module, "_STRETCHES_MAX", stretches_max)
    last_ns = 2**63 - 1 - SECOND_NS
    for start_ns in (START_NS, last_ns):
        _put_stream(store, start_ns, RECEIVED_NS)
    due = due_by_receipt(store, RECEIVED_NS // 10**6 - 1, RECEIVED_NS // 10**6)
    assert rows_of(store, due) == [0, (last_ns - START_NS) // SECOND_NS]


def test_the_text_of_joined_streams_grows_with_the_sum_of_theirs() -> None:
    """Not with its square: ClickHouse refuses a statement that is too big."""
    parts = [Due(0, 10, f"engine_id NOT IN ('{number:0100}')", f"span_id = '{number:0100}'") for number in range(200)]
    (one,) = joined(parts)
    assert len(one.keys) + len(one.which) < 4 * sum(len(each.inside) + len(each.which) for each in parts)
