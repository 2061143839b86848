"""Statements in pieces: each period and key once, the same rows as at once, and refusals of the engine itself."""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.batches import received_spans
from helpers.builders.rollup_rows import MINUTE_NS, THEN_NS, Double, committing, one, one_step, rollup_worker, send
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

    def run(piece: Piece) -> None:
        if not (has_memory and piece.is_smallest):
            raise REFUSED

    if has_memory:
        assert sorted(name for piece in by_tenant(whole, run, lambda _: names) for name in piece.tenants or ()) == sorted(names)
    else:
        with pytest.raises(StoreUnavailable, match="memory limit"):
            by_tenant(whole, run, lambda _: names)


@pytest.mark.parametrize("heavy", [["b"], ["a", "c"]])
def test_tenants_that_never_fit_wait_beside_others(heavy: list[str]) -> None:
    """No run fails because of them, also where a piece has no rows of others."""
    done = list[str]()

    def run(piece: Piece) -> None:
        if not set(piece.tenants or "abc").isdisjoint(heavy):
            raise REFUSED
        done.extend(piece.tenants or ())

    refused = by_tenant(Piece(np.array([0])), run, lambda _: "abc")
    assert sorted(piece.tenants or () for piece in refused) == [(name,) for name in heavy] and sorted([*done, *heavy]) == ["a", "b", "c"]
    assert len(by_tenant(Piece(np.array([0])), run, lambda _: heavy[:1])) == 1


def test_names_of_tenants_are_no_part_of_a_statement() -> None:
    """What follows in a statement's template is replaced later, and a name may look like it."""
    for name in (KEYS, MINUTES, SETTINGS, STORED, VERSION, "it's"):
        assert name not in Piece(np.array([0]), tenants=(name,), apart=((name, 0),)).rows("minute")


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
