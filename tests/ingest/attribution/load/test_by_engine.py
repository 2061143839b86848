"""Rows about several engines: those of one query are the rows that a query for each engine returns."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.batches import received_spans
from helpers.platform.examples import examples
from legato_gpu_agent.agent.otlp_spans import Engine, steps_request
from legato_gpu_agent.plugin.model import Step
from legato_ingest.attribution.load.by_engine import Windows, batches_of, rows_by_engine, span_of
from legato_ingest.otlp.batch import Limits
from legato_ingest.storage import Store

SECOND_NS = 10**9
NOW_NS = time.time_ns() // SECOND_NS * SECOND_NS
STEPS = """
SELECT tenant, engine_id, toUnixTimestamp64Nano(recorded_at) AS at_ns, step FROM engine_steps FINAL
WHERE {which} AND {inside} ORDER BY step"""
ENGINES = [(tenant, f"engine-{number}:8000") for tenant in ("", "other") for number in range(4)]
WINDOWS = st.dictionaries(
    st.sampled_from(ENGINES),
    st.tuples(st.integers(-5, 105), st.integers(0, 60)).map(lambda own: (NOW_NS + own[0] * SECOND_NS, NOW_NS + sum(own) * SECOND_NS)),
)


def put_steps(store: Store) -> None:
    """Store 100 steps of each engine, one a second. Each engine of a tenant counts from another number."""
    for place, (tenant, engine) in enumerate(ENGINES):
        made = [Step(1_000 * place + second, NOW_NS + second * SECOND_NS) for second in range(100)]
        batch = received_spans(steps_request(Engine(engine, 5), made), tenant=tenant, now_ns=NOW_NS, limits=Limits(retention_days=0))
        store.insert("engine_steps", batch.steps)


def test_each_engine_has_its_rows_within_its_window(store: Store) -> None:
    """Whatever windows share a query: of each engine the steps within its window, also if another tenant has an engine with its id."""
    put_steps(store)
    place = {key: number for number, key in enumerate(ENGINES)}

    @given(WINDOWS)
    @examples(12)
    def check(windows: dict[tuple[str, str], tuple[int, int]]) -> None:
        found = rows_by_engine(store, STEPS, windows, "recorded_at")
        for key, (low, high) in windows.items():
            expected = [1_000 * place[key] + second for second in range(100) if low <= NOW_NS + second * SECOND_NS <= high]
            assert found[key]["step"].tolist() == expected if expected else key not in found
        assert set(found) <= set(windows)

    check()


@given(st.dictionaries(st.sampled_from(ENGINES), st.tuples(st.integers(0, 10**14), st.integers(1, 10**13)), min_size=1))
@examples(100)
def test_engines_far_apart_do_not_share_a_query(drawn: dict[tuple[str, str], tuple[int, int]]) -> None:
    """Each engine is in one batch, and a batch reads at most twice the longest window in it and 16,000 engine-seconds."""
    windows: Windows = {key: (low, low + length) for key, (low, length) in drawn.items()}
    batches = list(batches_of(windows))
    assert sorted(key for batch in batches for key in batch) == sorted(windows)
    for batch in batches:
        low, high = span_of(batch)
        assert len(batch) == 1 or high - low <= min(
            2 * max(last - first for first, last in batch.values()), 16_000 * SECOND_NS // len(batch)
        )


def test_a_sweep_asks_few_queries_for_many_engines(store: Store) -> None:
    """5,000 engines at the same time, with long ids: 1,600 engines of 10 s in the first query, then 2,048, because there are few rows."""
    asked: list[str] = []

    class Counting:
        def select_arrow(self, sql: str) -> pa.Table:
            asked.append(sql)
            return store.select_arrow(sql)

    windows = {("", f"engine-{number}" + 100 * "x"): (NOW_NS, NOW_NS + 10 * SECOND_NS) for number in range(5_000)}
    assert rows_by_engine(Counting(), STEPS, windows, "recorded_at") == {}  # type: ignore[arg-type]
    # Longer than ClickHouse accepts by default.
    assert [sql.count(b"engine-".hex()) for sql in asked] == [1_600, 2_048, 1_352] and max(map(len, asked)) > 262_144


def test_after_many_rows_the_next_query_is_not_larger(store: Store) -> None:
    """The limit follows the rows of the query before: 10 steps a second are few, 200 are not, and 400 are too many for the memory."""
    asked: list[int] = []

    class Engines:
        def __init__(self, steps_per_s: int) -> None:
            self._steps_per_s = steps_per_s

        def select_arrow(self, sql: str) -> pa.Table:
            asked.append(sql.count(b"engine-".hex()))
            rows = asked[-1] * 100 * self._steps_per_s
            columns = {"tenant": pa.repeat(b"", rows), "engine_id": pa.repeat(b"e", rows), "at_ns": pa.repeat(0, rows)}
            return pa.table(columns)

    windows = {("", f"engine-{number}"): (NOW_NS, NOW_NS + 100 * SECOND_NS) for number in range(700)}
    for steps_per_s, expected in ((10, [160, 540]), (200, [160, 160, 160, 160, 60]), (400, [160, *8 * [80], 60])):
        asked.clear()
        rows_by_engine(Engines(steps_per_s), STEPS, windows, "recorded_at")  # type: ignore[arg-type]
        assert asked == expected


def test_an_engine_with_too_many_rows_is_left_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have their rows: one sender of very many steps takes no memory for them."""
    put_steps(store)
    monkeypatch.setattr("legato_ingest.attribution.load.by_engine._ROWS_MAX", 50)
    windows = {key: (NOW_NS, NOW_NS + (60 if key == ENGINES[2] else 9) * SECOND_NS) for key in ENGINES}
    found = rows_by_engine(store, STEPS, windows, "recorded_at")
    assert {key: len(rows["step"]) for key, rows in found.items()} == {key: 10 for key in ENGINES if key != ENGINES[2]}
