"""Recent keys: a row that may be stored is always looked up, and a new row of the present is not."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.spans import SECOND_NS, native_span, request
from helpers.dashboards.tables import streams
from helpers.platform.examples import examples
from helpers.servers.committing import PATIENCE_S, StoreDouble, committing, send, span_rows
from legato_ingest.storage import Store
from legato_ingest.write.recent_keys import RecentKeys

MINUTE_NS = 60 * SECOND_NS
TENANTS = "abc"
# Keys, and times in units of which some spans have one and some have two.
ROWS = st.lists(st.tuples(st.tuples(st.sampled_from(TENANTS), st.integers(0, 20)), st.integers(0, 20)), max_size=40)
UNIT_NS = 40 * SECOND_NS


@given(st.lists(ROWS, max_size=8), st.integers(-1, 5), st.integers(1, 60), st.dictionaries(st.sampled_from(TENANTS), st.integers(-5, 15)))
@examples(300)
def test_a_row_that_was_offered_may_be_stored(
    groups: list[list[tuple[tuple[str, int], int]]], since: int, keys_max: int, of_tenants: dict[str, int]
) -> None:
    """Whatever was forgotten: a row that was offered before, or that is older than what is known, may be stored. The room is limited."""
    stored_ns = {tenant: at * UNIT_NS for tenant, at in of_tenants.items()}
    recent, offered = RecentKeys(since * UNIT_NS, keys_max, stored_ns), set[tuple[tuple[str, int], int]]()
    for group in groups:
        found = recent.may_be_stored([key for key, _ in group], [at * UNIT_NS for _, at in group])
        for (key, at), may_be in zip(group, found, strict=True):
            assert may_be or not ((key, at) in offered or at <= max(since, of_tenants.get(key[0], since)))
            offered.add((key, at))
        held = [(len(keys), tenant) for tenant in recent._tenants.values() for keys in tenant.spans.values()]
        assert sum(number + 5 for number, _ in held) + 5 * len(recent._tenants) == recent._count <= keys_max


@given(st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(0, 8), st.integers(1, 200)), max_size=30))
@examples(100)
def test_one_tenants_rows_have_no_rows_of_others_looked_up(sent: list[tuple[str, int, int]]) -> None:
    """At any times: a tenant that needs no more than its share of the room is known to be new, and its retries are known."""
    recent, number = RecentKeys(-1, keys_max=400), 0
    for turn, (tenant, at, count) in enumerate(sent):
        recent.may_be_stored([(tenant, number + each) for each in range(count)], [at * MINUTE_NS] * count)
        number += count
        if turn < 14:
            assert recent.may_be_stored([("good", turn)], [2 * MINUTE_NS]) == [False]
            assert recent.may_be_stored([("good", turn)], [2 * MINUTE_NS]) == [True]


def test_the_room_of_many_tenants_is_limited() -> None:
    """Each has a span with few keys, at once or one after another; what one has beyond the others is forgotten first."""
    recent = RecentKeys(0, keys_max=50_000)
    for at in range(1, 4):
        keys = [(f"t{number}", at) for number in range(10_000)]
        assert not any(recent.may_be_stored(keys, [at * MINUTE_NS] * len(keys)))
        many = [("hostile", at, number) for number in range(40_000)]
        recent.may_be_stored(many, np.arange(len(many)) * SECOND_NS + at * MINUTE_NS)
        assert recent._count <= 50_000 and sum(recent.may_be_stored(keys[:100], [at * MINUTE_NS] * 100)) == 100
    assert sum(len(tenant.spans) for tenant in recent._tenants.values()) <= 10_000


def test_tenants_without_keys_are_forgotten() -> None:
    """However many names come, one after another, and also if each is far ahead; others are known to be new beside a few of these."""
    recent = RecentKeys(0, keys_max=10_000)
    for turn in range(1, 41):
        keys = [(f"t{turn} {number}", 1) for number in range(1_000)]
        assert not any(recent.may_be_stored(keys, [turn * MINUTE_NS] * 1_000))
        assert all(recent.may_be_stored(keys, [turn * MINUTE_NS] * 1_000))
        recent.may_be_stored([(f"ahead {turn}", 1)] * 2_000, [(1_000 + turn) * MINUTE_NS] * 2_000)
        assert len(recent._tenants) <= 2_000
    for turn in range(41, 51):
        keys = [(f"{turn} {number}", 1) for number in range(20_000)]
        assert all(recent.may_be_stored(keys, [0] * 20_000)) and len(recent._tenants) <= 2_000
        # Each of them is past the room, at its own time.
        recent.may_be_stored(keys, [(2_000 + each) * MINUTE_NS for each in range(20_000)])
        assert len(recent._tenants) <= 2_000 and all(recent.may_be_stored(keys, [turn * MINUTE_NS] * 20_000))


def test_new_keys_are_known_to_be_new() -> None:
    """Of the present, and also after older minutes were forgotten."""
    recent = RecentKeys(0, keys_max=100)
    for minute in range(1, 50):
        keys = [("", f"{minute} {number}") for number in range(20)]
        assert recent.may_be_stored(keys, [minute * MINUTE_NS] * 20) == [False] * 20
        assert recent.may_be_stored(keys, [minute * MINUTE_NS] * 20) == [True] * 20


def test_a_key_with_another_time_of_its_minute_is_known() -> None:
    """Also if its tenant has forgotten keys: it knows whole minutes."""
    recent = RecentKeys(0, keys_max=100)
    for minute in range(1, 20):
        recent.may_be_stored(
            [("", minute, number) for number in range(30)], [minute * MINUTE_NS + number * SECOND_NS for number in range(30)]
        )
        for number in (0, 29):
            assert recent.may_be_stored([("", minute, number)], [(minute + 1) * MINUTE_NS - 1]) == [True]


class Asked(StoreDouble):
    """A store that remembers which tables are looked up."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.lookups: list[str] = []

    def select_arrow(self, sql: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """Remember the query."""
        self.lookups.append(sql)
        return self._store.select_arrow(sql, parameters)


def test_only_retries_are_looked_up(store: Store) -> None:
    """New streams of the present need no query; a retry, also after a restart, is found and stored once."""
    double, start_ns = Asked(store), time.time_ns() // MINUTE_NS * MINUTE_NS + 2 * MINUTE_NS
    bodies = []
    for number in range(4):
        body = request()
        native_span(body, start_ns=start_ns + number * SECOND_NS, trace_id=bytes([1 + number]) * 16)
        bodies.append(body)
    with committing(double) as committer:
        send(committer, *bodies)
        assert not [sql for sql in double.lookups if "stream_revs" in sql]
        send(committer, *bodies)
        assert [sql for sql in double.lookups if "stream_revs" in sql]
    with committing(double) as committer:
        send(committer, *bodies)
    assert len(streams(store)) == 4


def test_a_span_with_a_corrected_start_is_stored_once(store: Store) -> None:
    """Within its minute, as after a restart, when every row is looked up."""
    start_ns = (time.time_ns() // MINUTE_NS + 2) * MINUTE_NS
    with committing(store) as committer:
        for second in (1, 12):
            body = request()
            native_span(body, start_ns=start_ns + second * SECOND_NS, trace_id=b"t" * 16, span_id=b"s" * 8)
            send(committer, body)
    assert len(streams(store)) == 1


def test_a_stored_row_of_the_future_concerns_its_tenant_alone(store: Store) -> None:
    """After a restart, too: rows of others are not looked up until its time."""
    double, now_ns = Asked(store), time.time_ns() // MINUTE_NS * MINUTE_NS
    with committing(double) as committer:
        for tenant, minutes in (("ahead", 600), ("ahead", 300), ("good", 2)):
            body = request()
            native_span(body, start_ns=now_ns + minutes * MINUTE_NS, trace_id=bytes([minutes % 256]) * 16)
            assert committer.submit(span_rows(body, tenant)).result(PATIENCE_S).rejected == 0
            assert not [sql for sql in double.lookups if "stream_revs" in sql]
    with committing(double) as committer:
        for tenant, minutes, is_looked_up in (("good", 3, False), ("ahead", 301, True), ("ahead", 601, False)):
            double.lookups.clear()
            body = request()
            native_span(body, start_ns=now_ns + minutes * MINUTE_NS, trace_id=b"%16d" % minutes)
            assert committer.submit(span_rows(body, tenant)).result(PATIENCE_S).rejected == 0
            assert bool([sql for sql in double.lookups if "stream_revs" in sql]) == is_looked_up


def test_with_several_instances_each_row_is_looked_up(store: Store) -> None:
    """Another instance may have stored it."""
    double, body = Asked(store), request()
    native_span(body, start_ns=time.time_ns() + 2 * MINUTE_NS)
    with committing(double, look_again_s=60) as committer:
        send(committer, body)
    assert [sql for sql in double.lookups if "stream_revs" in sql]
