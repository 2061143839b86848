"""Statements in pieces: each period and key once, the same rows as at once, and refusals of the engine itself."""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.batches import received_spans
from helpers.builders.rollup_rows import DAY_NS, HOUR_NS, MINUTE_NS, THEN_NS, Double, committing, one, one_step, rollup_worker, send
from helpers.builders.spans import SECOND_NS
from helpers.builders.worst_bodies import NATIVE, span, spans, text
from helpers.dashboards.minutes import differences
from helpers.platform.examples import examples
from legato_ingest.errors import StoreUnavailable
from legato_ingest.otlp.batch import Limits
from legato_ingest.rollups import pieces, worker
from legato_ingest.rollups.divided import NO_PROGRESS, Divided
from legato_ingest.rollups.pieces import Piece, by_tenant
from legato_ingest.rollups.queries import KEYS, MINUTES, SETTINGS, STORED, VERSION
from legato_ingest.storage import Store

REFUSED = StoreUnavailable("Code: 241. DB::Exception: memory limit exceeded", 241)
HASHES = (0, 1, 2**63 - 1, 2**63, 2**64 - 1, *(random.Random(1).getrandbits(64) for _ in range(20)))
PERIODS = st.lists(st.integers(0, 10**6), min_size=1, max_size=20, unique=True).map(lambda each: np.array(sorted(each), np.int64) * 60)


def never() -> bool:
    """The worker is not stopping."""
    return False


def in_pieces(starts_s: np.ndarray[Any, np.dtype[np.int64]], run: Callable[[Piece], None]) -> None:
    """Compute all pieces of one tenant, the oldest period first."""
    divided = Divided(in_order=True)
    divided.add("test", Piece(starts_s, tenants=("",)), NO_PROGRESS)
    while divided:
        one_step(divided, lambda _, piece: run(piece))


def covers(piece: Piece, hashed: int) -> bool:
    """Whether the piece's condition holds for a key with this hash."""
    condition = piece.keys(str(hashed)).strip("()").split()
    return len(condition) == 1 or int(condition[2]) <= int(condition[0]) <= int(condition[4])


@given(PERIODS, st.integers(1, 30), st.randoms(use_true_random=False))
@examples(50)
def test_completed_pieces_have_every_period_and_key_once(
    starts_s: np.ndarray[Any, np.dtype[np.int64]], fits: int, rng: random.Random
) -> None:
    """In the order of the periods, whatever is refused; the smallest piece has no limit and is not refused.

    After each refusal it is tried: it shows whether the store has memory.
    """
    weights, done, is_trial = {int(start): rng.randrange(100) for start in starts_s}, list[Piece](), False

    def run(piece: Piece) -> None:
        nonlocal is_trial
        if sum(weights[int(start)] for start in piece.starts_s) / piece.shares > fits and not piece.is_smallest:
            is_trial = True
            raise REFUSED
        assert (piece.settings == "max_memory_usage = 0") == piece.is_smallest and piece.is_smallest >= is_trial
        done.extend([] if is_trial else [piece])
        is_trial = False

    in_pieces(starts_s, run)
    for hashed in HASHES:
        assert [int(start) for piece in done if covers(piece, hashed) for start in piece.starts_s] == starts_s.tolist()


def test_other_errors_are_raised_at_once() -> None:
    """As is a refusal of the smallest piece: the engine has no memory at all then, and the next run tries again."""
    seen = list[Piece]()

    def refuse(error: StoreUnavailable) -> Callable[[Piece], None]:
        def run(piece: Piece) -> None:
            seen.append(piece)
            raise error

        return run

    with pytest.raises(StoreUnavailable, match="restarting"):
        in_pieces(np.array([0, 60]), refuse(StoreUnavailable("restarting")))
    assert len(seen) == 1
    with pytest.raises(StoreUnavailable, match="memory limit"):
        in_pieces(np.array([0, 60]), refuse(REFUSED))
    assert len(seen) < 20 and seen[-1].is_smallest


@pytest.mark.parametrize(("has_memory", "count"), [(False, 300), (True, 300), (True, 2)])
def test_a_store_without_memory_divides_no_tenant(has_memory: bool, count: int) -> None:
    """Nothing is computed then, and the whole is tried again. If each tenant takes much, but the store has some, all are divided."""
    names, whole = [f"tenant {number}" for number in range(count)], Piece(np.array([0, 300]))
    tried = list[Piece]()

    def run(piece: Piece) -> None:
        tried.append(piece)
        if not (has_memory and piece.is_smallest):
            raise REFUSED

    if has_memory:
        assert sorted(name for piece in by_tenant(whole, run, lambda _: names, never) for name in piece.tenants or ()) == sorted(names)
    else:
        with pytest.raises(StoreUnavailable, match="memory limit"):
            by_tenant(whole, run, lambda _: names, never)
        assert len(tried) < 40


def test_no_piece_is_divided_while_the_worker_stops() -> None:
    """The division of many tenants takes minutes."""

    def run(piece: Piece) -> None:
        assert piece.tenants is None
        raise REFUSED

    with pytest.raises(StoreUnavailable, match="stopping"):
        by_tenant(Piece(np.array([0])), run, lambda _: "ab", lambda: True)


@pytest.mark.parametrize("heavy", [["b"], ["a", "c"]])
def test_tenants_that_never_fit_wait_beside_others(heavy: list[str]) -> None:
    """No run fails because of them, also where a piece has no rows of others."""
    done = list[str]()

    def run(piece: Piece) -> None:
        if not set(piece.tenants or "abc").isdisjoint(heavy):
            raise REFUSED
        done.extend(piece.tenants or ())

    refused = by_tenant(Piece(np.array([0])), run, lambda _: "abc", never)
    assert sorted(piece.tenants or () for piece in refused) == [(name,) for name in heavy] and sorted([*done, *heavy]) == ["a", "b", "c"]
    assert len(by_tenant(Piece(np.array([0])), run, lambda _: heavy[:1], never)) == 1


def test_names_of_tenants_are_no_part_of_a_statement() -> None:
    """What follows in a statement's template is replaced later, and a name may look like it."""
    for name in (KEYS, MINUTES, SETTINGS, STORED, VERSION, "it's"):
        assert name not in Piece(np.array([0]), tenants=(name,), apart=((name, 0),)).rows("minute")


def test_many_pieces_that_wait_take_little_memory(store: Store) -> None:
    """Their list took the memory of a statement, so all other tenants were refused, whatever was divided."""
    with committing(store) as committer:
        for tenant in ("heavy 7", "light"):
            send(committer, [one("a", 1), one("b", 1, span_id=b"another.", start_ns=THEN_NS + MINUTE_NS)], tenant)
        rollup_worker(store, committer.watermark_ms).step()
    minutes_s = np.arange(240) * 60 + (THEN_NS // SECOND_NS - 239 * 60)
    whole = Piece(minutes_s, apart=tuple((f"heavy {number}", at) for number in range(100) for at in minutes_s.tolist()))
    for piece in (whole, whole.of(("heavy 7", "light"))):
        condition = piece.rows("toUnixTimestamp(minute)")
        rows = store.select(
            f"SELECT tenant, model FROM stream_minutes WHERE {condition} ORDER BY 1, 2 SETTINGS max_memory_usage = 50000000"
        )
        assert rows == [("heavy 7", "b"), ("light", "a"), ("light", "b")]
    assert len(whole.of(("heavy 7", "light")).apart) == 240


class Refusing(Double):
    """A store that refuses all statements for some tenants, and those for all tenants in an old minute."""

    def __init__(self, store: Store, tenants: Sequence[str], old_s: int) -> None:
        super().__init__(store)
        self._names, self._old_s = [tenant.encode().hex() for tenant in tenants], str(old_s)

    def command(self, sql: str) -> None:
        """Run a statement, or refuse it."""
        named = [name for name in self._names if f"tenant IN (unhex('{name}')" in sql or f", unhex('{name}')" in sql]
        if sql.lstrip().startswith("INSERT INTO stream_minutes") and (named or (self._old_s in sql and "tenant IN (" not in sql)):
            raise REFUSED
        super().command(sql)


@pytest.mark.parametrize("count", [2, 9])
def test_tenants_that_never_fit_alone_in_a_minute_stop_nothing_else(store: Store, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Neither later minutes, nor hours, node samples, or the record of the run."""
    monkeypatch.setattr(worker, "_OLD_S_MAX", 0.0)
    monkeypatch.setattr(worker, "_DIVIDED_S", 0.0)
    old_ns, names = THEN_NS - 40 * DAY_NS, [f"heavy {number}" for number in range(count)]
    with committing(store) as committer:
        for name in names:
            batch = received_spans(one("a", 1, start_ns=old_ns), tenant=name, now_ns=time.time_ns(), limits=Limits())
            store.insert("stream_revs", batch.revs)
        rolling = rollup_worker(Refusing(store, names, old_ns // SECOND_NS), committer.watermark_ms)
        rolling.step()
        send(committer, [one("a", 1), one("b", 1, span_id=b"another.", start_ns=time.time_ns() - MINUTE_NS)], "light")
        # In each run the tenants are tried in another order. One in five runs tries eight heavy ones first, and then the light one waits.
        for _ in range(10):
            rolling.step()
    for table in ("stream_minutes", "stream_hours"):
        assert store.select(f"SELECT tenant, sum(streams) FROM {table} FINAL GROUP BY tenant") == [("light", 2)]
    assert store.select("SELECT count() > 0, toUnixTimestamp64Milli(max(until)) FROM rollup_runs") == [(1, 0)]


class Failing(Double):
    """A store that refuses all computations of minutes and samples, or those with a text in their statement, with one error."""

    def __init__(self, store: Store, error: StoreUnavailable) -> None:
        super().__init__(store)
        self._error, self.refused, self.only = error, 0, ""

    def command(self, sql: str) -> None:
        """Refuse a computation."""
        if "INSERT INTO" not in sql or self.only not in sql:
            return super().command(sql)
        self.refused += 1
        raise self._error


def test_an_expired_minute_is_no_sign_of_memory(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One late row of a tenant would have all tenants divided while the store lacks memory."""
    monkeypatch.setattr(worker, "_OLD_S_MAX", 0.0)
    names = [f"tenant {number}" for number in range(30)]
    for name, start_ns in [*((each, THEN_NS) for each in names), ("late", time.time_ns() - 30 * DAY_NS + 60 * SECOND_NS)]:
        batch = received_spans(one("a", 1, start_ns=start_ns), tenant=name, now_ns=time.time_ns(), limits=Limits(retention_days=30))
        store.insert("stream_revs", batch.revs)
    rolling = rollup_worker(failing := Failing(store, REFUSED), retention_days=30)
    rolling.step()
    assert 0 < failing.refused < 40 and not rolling._pending.divided


def test_what_is_refused_for_another_reason_is_tried_twice_a_run(store: Store) -> None:
    """A server with too many parts refuses each minute, at once: a loop over them would take a core. Other minutes, and hours, go on."""
    # Not the first minute of its hour: the statement of the hour names that one, too.
    old_ns = (THEN_NS - DAY_NS) // HOUR_NS * HOUR_NS + 7 * MINUTE_NS
    with committing(store) as committer:
        send(committer, [one("a", 1), one("b", 1, span_id=b"another.", start_ns=old_ns)])
        rolling = rollup_worker(failing := Failing(store, StoreUnavailable("Code: 252. DB::Exception: too many parts", 252)))
        for run in (1, 2):
            rolling.step()
            assert failing.refused == 2 * run and rolling._pending.progress() == (0, 0)
        failing.only = str(old_ns // SECOND_NS)
        send(committer, [one("a", 1, span_id=b"recent..", start_ns=time.time_ns() - MINUTE_NS)])
        rolling.step()
    for table in ("stream_minutes", "stream_hours"):
        assert store.select(f"SELECT model, sum(streams) FROM {table} FINAL GROUP BY model") == [("a", 1)]


class Narrow(Double):
    """A store that refuses every statement with a limit for memory, each second one only after it has run; no row leaves it in Arrow."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._written = itertools.cycle((False, True))

    def command(self, sql: str) -> None:
        """Run a statement without a limit; refuse others."""
        has_limit = "max_memory_usage" in sql and "max_memory_usage = 0" not in sql
        if not has_limit or next(self._written):
            super().command(sql)
        if has_limit:
            raise REFUSED

    def select_arrow(self, sql: str) -> None:
        """Fail: rows of a rollup can be long."""
        raise AssertionError(sql)


def test_rollups_in_pieces_are_the_same(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of minutes and hours, also where a refused statement has written its rows, and where a key vanishes."""
    monkeypatch.setattr(pieces, "_SHARES_MAX", 2)
    monkeypatch.setattr(worker, "_OLD_S_MAX", 60.0)
    with committing(store) as committer:
        narrow = rollup_worker(Narrow(store), committer.watermark_ms)
        send(committer, [one("a", 1), one("c", 1, span_id=b"another.", start_ns=THEN_NS + MINUTE_NS)])
        for minutes, body in ((2, None), (1, one("b", 2))):
            send(committer, [body] if body else [])
            assert narrow.step().minutes == minutes
            # Hours follow the minutes that were divided in the next run.
            narrow.step()
            assert differences(store) == []
    assert store.select("SELECT model, streams FROM stream_minutes FINAL ORDER BY model") == [("a", 0), ("b", 1), ("c", 1)]


def test_long_keys_are_computed_in_pieces(store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Streams that share long names in their resource, each with another route. The engine refuses, and every row is right."""
    monkeypatch.setattr(pieces, "_MEMORY_MAX_BYTES", 64 * 2**20)
    monkeypatch.setattr(worker, "_OLD_S_MAX", 60.0)
    names = (b"service.name", b"gen_ai.request.model", b"gen_ai.provider.name", b"service.version", b"legato.emitter")
    made = [span([*NATIVE, (b"http.route", text(f"r{each}"))], THEN_NS, THEN_NS + SECOND_NS) for each in range(4_000)]
    body = ExportTraceServiceRequest.FromString(spans(made, [(name, text("ü" * 1024)) for name in names]))
    store.insert("stream_revs", received_spans(body, tenant="", now_ns=time.time_ns(), limits=Limits()).revs)
    with caplog.at_level(logging.WARNING, "legato"):
        rolling = rollup_worker(store)
        rolling.step()
        # Hours follow the minutes that were divided.
        rolling.step()
    assert any(each.startswith("stream_minutes: the period") for each in caplog.messages)
    assert differences(store) == []


STALLED = """
INSERT INTO verdicts (tenant, start_time, trace_id, span_id, gap_start_us, gap_us, excess_us, cause, confidence, judged_at)
SELECT tenant, start_time, trace_id, span_id, number, 500000 + number, 1, 'host', 'likely', now64(3)
FROM streams ARRAY JOIN range(300000) AS number"""


def test_many_stalls_of_a_minute_need_no_pieces(store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The rollup of streams keeps a few figures of each stream; a list of its stalls would be in every piece of the keys."""
    monkeypatch.setattr(pieces, "_MEMORY_MAX_BYTES", 32 * 2**20)
    with committing(store) as committer:
        send(committer, [one("a", 1, span_id=bytes([each]) * 8) for each in (1, 2)])
    store.command(STALLED)
    with caplog.at_level(logging.WARNING, "legato"):
        assert rollup_worker(store).step().minutes == 1
    assert not any(each.startswith("stream_minutes") for each in caplog.messages)


WIDE = """
INSERT INTO node_samples (tenant, metric, series, recorded_at, received_at, kind, attributes, value)
SELECT tenant, 'wide', cityHash64(number), fromUnixTimestamp64Nano({at_ns}, 'UTC'), now64(3), 'gauge',
    mapFromArrays(arrayMap(each -> 'k' || toString(each), range(100)), arrayMap(each -> repeat(toString(each), 500), range(100))), number
FROM (SELECT 'heavy' AS tenant, number FROM numbers(1000) UNION ALL SELECT 'other', 0)"""


def test_long_attributes_are_computed_in_pieces(store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A thousand series of one period with 95 KB of attributes each. The period of another tenant is computed before."""
    monkeypatch.setattr(pieces, "_MEMORY_MAX_BYTES", 128 * 2**20)
    monkeypatch.setattr(worker, "_DIVIDED_S", 0.0)
    store.command(WIDE.format(at_ns=THEN_NS))
    found = "SELECT tenant, uniqExact(series), sum(value_sum), sum(samples), min(length(toString(attributes))) > 90000"
    rolling, other = rollup_worker(store), ("other", 1, 0.0, 1, 1)
    with caplog.at_level(logging.WARNING, "legato"):
        rolling.step()
        assert other in store.select(f"{found} FROM node_samples_5min FINAL GROUP BY tenant") and rolling._samples._divided
        while rolling._samples._divided:
            rolling.step()
    assert any(each.startswith("node_samples_5min: the period") for each in caplog.messages)
    rows = store.select(f"{found} FROM node_samples_5min FINAL GROUP BY tenant ORDER BY tenant")
    assert rows == [("heavy", 1000, 499_500.0, 1000, 1), other]
