"""Recent keys: a row that may be stored is always looked up, and a new row of the present is not."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.spans import SECOND_NS, native_span, request
from helpers.dashboards.tables import streams
from helpers.platform.examples import examples
from helpers.servers.committing import StoreDouble, committing, send
from legato_ingest.storage import Store
from legato_ingest.write.recent_keys import RecentKeys

MINUTE_NS = 60 * SECOND_NS
ROWS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10)), max_size=40)


@given(st.lists(ROWS, max_size=8), st.integers(-1, 5), st.integers(1, 30))
@examples(200)
def test_a_row_that_was_offered_may_be_stored(groups: list[list[tuple[int, int]]], since: int, keys_max: int) -> None:
    """Whatever was forgotten: a row that was offered before, or that is older than what is known, may be stored."""
    recent, offered = RecentKeys(since * MINUTE_NS, keys_max), set[tuple[int, int]]()
    for group in groups:
        keys, times = [key for key, _ in group], [minute * MINUTE_NS + 1 for _, minute in group]
        for (key, minute), may_be in zip(group, recent.may_be_stored(keys, times), strict=True):
            assert may_be or not ((key, minute) in offered or minute * MINUTE_NS + 1 <= since * MINUTE_NS)
            offered.add((key, minute))


def test_new_keys_are_known_to_be_new() -> None:
    """Of the present, and also after older minutes were forgotten."""
    recent = RecentKeys(0, keys_max=100)
    for minute in range(1, 50):
        keys = [f"{minute} {number}" for number in range(20)]
        assert recent.may_be_stored(keys, [minute * MINUTE_NS] * 20) == [False] * 20
        assert recent.may_be_stored(keys, [minute * MINUTE_NS] * 20) == [True] * 20


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


def test_with_several_instances_each_row_is_looked_up(store: Store) -> None:
    """Another instance may have stored it."""
    double, body = Asked(store), request()
    native_span(body, start_ns=time.time_ns() + 2 * MINUTE_NS)
    with committing(double, look_again_s=60) as committer:
        send(committer, body)
    assert [sql for sql in double.lookups if "stream_revs" in sql]
