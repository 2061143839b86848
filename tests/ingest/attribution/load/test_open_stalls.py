"""Open stalls: tenants have equal shares of those that one run judges, and much work of one comes after that of the others."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.judging import worker
from helpers.builders.spans import SECOND_NS, native_span, request
from helpers.builders.world_spans import put
from helpers.platform.examples import examples
from legato_ingest.attribution import worker as worker_module
from legato_ingest.attribution.load import open_stalls as module
from legato_ingest.attribution.load.open_stalls import open_stalls, small_and_large
from legato_ingest.attribution.model.vantage import Stream, Vantage
from legato_ingest.storage import Store


def put_reports(store: Store, tenant: str, gaps: Iterable[tuple[int, int]], received_ns: int, trace_id: bytes = b"") -> None:
    """Store the reports of a trace or of many: each a stream's start (s before now) and its number."""
    body = request()
    for ago_s, number in gaps:
        own = trace_id or f"{tenant:>8}{number:08}".encode()
        span = native_span(
            body,
            {"legato.stream.silent_since": 500_000, "legato.engine.id": f"engine-{number}", "legato.stream.vantage": "server"},
            trace_id=own,
            start_ns=received_ns - ago_s * SECOND_NS,
            duration_ns=10 * SECOND_NS,
        )
        span.name, span.parent_span_id = "legato.stream.silence", f"{number:08}".encode()
    put(store, body, received_ns, tenant)


def tenants_of(streams: Iterable[Stream]) -> list[str]:
    """Return the tenant of each stream in order."""
    return sorted(stream.tenant for stream in streams)


def test_a_tenant_with_many_reports_crowds_no_other_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its share of those that one run judges, and one alone all of it."""
    monkeypatch.setattr(module, "_MOST", 4)
    received_ns = time.time_ns()
    put_reports(store, "hostile", [(600, number) for number in range(9)], received_ns)
    until_ms = received_ns // 10**6
    assert tenants_of(open_stalls(store, 0, until_ms)) == ["hostile"] * 4
    put_reports(store, "honest", [(60, 0)], received_ns)
    assert tenants_of(open_stalls(store, 0, until_ms)) == ["honest"] + ["hostile"] * 3
    assert tenants_of(open_stalls(store, 0, until_ms, tenants="tenant != 'hostile'")) == ["honest"]


def test_very_many_silent_streams_of_one_trace_are_not_read(store: Store) -> None:
    """They cannot be matched, however few or many they are."""
    received_ns = time.time_ns()
    put_reports(store, "", [(60, number) for number in range(9)], received_ns, trace_id=b"t" * 16)
    assert open_stalls(store, 0, received_ns // 10**6) == []
    sql = module._REPORTS.format(new="1", most=10)
    assert store.select_arrow(sql).num_rows == 2


def test_open_stalls_of_many_times_come_after_those_of_others(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """For some seconds in each run: each time costs some queries, and 2,000 of them kept another tenant's verdict back for 165 s."""
    monkeypatch.setattr(worker_module, "_TURNS_S", 0.0)
    judge = worker(store)
    judge.step()
    received_ns = time.time_ns()
    put_reports(store, "hostile", [(100 + 900 * number, number) for number in range(8)], received_ns)
    put_reports(store, "honest", [(60, 0)], received_ns)
    time.sleep(0.01)
    judge.step()
    assert [tuple(row) for row in store.select("SELECT tenant, count() FROM verdicts GROUP BY tenant")] == [("honest", 1)]


def _stream(tenant: str, begin_s: int, length_s: int, number: int) -> Stream:
    begin, none = begin_s * SECOND_NS, np.zeros(0, np.int64)
    vantage = Vantage(np.array([begin, begin + length_s * SECOND_NS]), none, none)
    return Stream(tenant, begin, number.to_bytes(16, "big"), bytes(8), vantage, vantage, f"engine-{number}", "", "")


GAPS = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 3_000), st.sampled_from([2, 30, 40_000])), max_size=12)


@given(GAPS)
@examples(100)
def test_each_open_stall_is_in_one_part(gaps: list[tuple[str, int, int]]) -> None:
    """Of five minutes; the tenants with little work share parts, at most four of each."""
    streams = [_stream(*gap, number) for number, gap in enumerate(gaps)]
    small, large = small_and_large(streams)
    assert sorted(each.trace_id for part in small + large for each in part) == sorted(each.trace_id for each in streams)
    for part in small + large:
        assert len({each.first_ns // (300 * SECOND_NS) for each in part}) == 1
    assert all(len({each.tenant for each in part}) == 1 for part in large)
    for tenant in {each.tenant for part in small for each in part}:
        own = [part for part in small if any(each.tenant == tenant for each in part)]
        assert len(own) <= 4 and not any(each.tenant == tenant for part in large for each in part)
        assert sum(each.last_ns - each.first_ns for part in own for each in part if each.tenant == tenant) <= 64_000 * SECOND_NS
