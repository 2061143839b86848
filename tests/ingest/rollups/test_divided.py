"""Tenants that take much memory: the others are computed first, each in its turn, and nothing is lost or computed for a mixed state."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.batches import received_spans
from helpers.builders.rollup_rows import MINUTE_NS, THEN_NS, one_step, rollup_worker
from helpers.builders.spans import SECOND_NS
from helpers.builders.worst_bodies import NATIVE, span, spans, text
from helpers.dashboards.minutes import differences
from helpers.platform.examples import examples
from legato_ingest.errors import MEMORY_LIMIT_EXCEEDED, StoreUnavailable
from legato_ingest.otlp.batch import Limits
from legato_ingest.rollups import pieces, worker
from legato_ingest.rollups.divided import NO_PROGRESS, Divided
from legato_ingest.rollups.pieces import Piece, by_tenant
from legato_ingest.storage import Store

REFUSED = StoreUnavailable("Code: 241. DB::Exception: memory limit exceeded", MEMORY_LIMIT_EXCEEDED)
TENANTS, MINUTES, SHARES = "abcde", range(0, 6 * 60, 60), 64
# How many rows of each tenant and minute take memory; a statement may have ten.
WEIGHTS = st.dictionaries(st.tuples(st.sampled_from(TENANTS), st.sampled_from(MINUTES)), st.sampled_from((0, 1, 8, 40, 300)))


class Rolled:
    """A store that keeps, for each tenant, minute and share of keys, the version of the rows that a rollup was computed from."""

    def __init__(self, weights: dict[tuple[str, int], int]) -> None:
        self._weights, self.rows, self.rolled = weights, dict[tuple[str, int], int](), dict[tuple[str, int, int], int]()

    def run(self, piece: Piece) -> None:
        """Compute a piece; refuse one that takes too much memory."""
        tenants = piece.tenants or tuple(TENANTS)
        cells = [(tenant, int(start)) for tenant in tenants for start in piece.starts_s if (tenant, int(start)) not in piece.apart]
        if sum(self._weights.get(cell, 0) for cell in cells) / piece.shares > 10 and not piece.is_smallest:
            raise REFUSED
        width = SHARES // piece.shares
        for cell in cells:
            for share in range(piece.number * width, (piece.number + 1) * width):
                self.rolled[*cell, share] = self.rows.get(cell, 0)

    def oldest(self, cell: tuple[str, int]) -> int:
        """The oldest version of which a key of a tenant and minute is computed; 0: none."""
        return min(self.rolled.get((*cell, share), 0) for share in range(SHARES))

    def lacks(self) -> set[tuple[str, int]]:
        """The tenants and minutes with a key that is not computed from the newest rows."""
        return {cell for cell, version in self.rows.items() if self.oldest(cell) != version}


RUNS = st.lists(st.tuples(st.sets(st.tuples(st.sampled_from(TENANTS), st.sampled_from(MINUTES))), st.integers(0, 9)), max_size=6)


@given(WEIGHTS, RUNS, st.booleans())
@examples(60)
def test_all_is_computed_from_its_newest_rows(
    weights: dict[tuple[str, int], int], runs: list[tuple[set[tuple[str, int]], int]], in_order: bool
) -> None:
    """Runs change some minutes and compute some pieces. What is not current waits, and no progress is past it.

    ``in_order``: of the minutes of a tenant that changed in one run, none is current while an older one is not.
    """
    store, divided, changes = Rolled(weights), Divided(in_order=in_order), defaultdict[tuple[str, int], list[int]](list)
    for number, (changed, count) in enumerate(runs, 1):
        found = (number, number)
        for cell in changed:
            store.rows[cell] = number
            changes[cell].append(number)
        if minutes := sorted({minute for _, minute in changed}):
            part = np.array(minutes, np.int64)
            for piece in by_tenant(divided.left_out("t", part, found), store.run, lambda piece: TENANTS, lambda: False):
                divided.add("t", piece, found)
        for _ in range(count):
            if divided:
                one_step(divided, lambda table, piece: store.run(piece))
        missing = min((each for cell, numbers in changes.items() for each in numbers if each > store.oldest(cell)), default=number + 1)
        assert divided.progress((number + 1, 0)) <= (missing, missing)
        # A tenant that takes little memory waits for no other.
        lacks = store.lacks()
        assert all(sum(weights.get((tenant, minute), 0) for minute in MINUTES) > 10 for tenant, _ in lacks)
        for (tenant, minute), version in store.rows.items() if in_order else ():
            older = ((tenant, each) for each in MINUTES if each < minute and store.rows.get((tenant, each)) == version)
            assert (tenant, minute) in lacks or lacks.isdisjoint(older)
    while divided:
        one_step(divided, lambda table, piece: store.run(piece))
    assert not store.lacks() and not divided.keeps_progress and divided.progress((9, 9)) == (9, 9)


def test_tenants_have_their_turns_and_small_pieces_come_first() -> None:
    """One with many minutes does not keep another waiting; of its minutes those that fit come before shares of keys."""
    weights = {("a", minute): 300 for minute in MINUTES[1:]} | {("a", 0): 1, ("b", 0): 15}
    store, divided, order = Rolled(weights), Divided(), list[tuple[str, int]]()

    def run(table: str, piece: Piece) -> None:
        store.run(piece)
        # After a refusal the smallest piece shows that the store has memory.
        if not piece.is_smallest:
            order.extend((name, int(start)) for name in piece.tenants or () for start in piece.starts_s)

    store.rows = dict.fromkeys(weights, 1)
    divided.add("t", Piece(np.array(MINUTES, np.int64), tenants=("a",)), NO_PROGRESS)
    divided.add("t", Piece(np.array([0], np.int64), tenants=("b",)), NO_PROGRESS)
    assert not divided.keeps_progress
    for _ in range(6):
        one_step(divided, run)
    assert order == [("b", 0), ("b", 0)]
    while divided:
        one_step(divided, run)
    assert order[2] == ("a", 0) and not store.lacks()


def test_minutes_of_one_tenant_wait_beside_its_shares_of_keys() -> None:
    """One minute with shares, and two that came later, of which those that wait are left out."""
    store, divided = Rolled({("a", 60): 40}), Divided()
    store.rows = {("a", minute): 1 for minute in (60, 120)}
    divided.add("t", Piece(np.array([60], np.int64), tenants=("a",)), NO_PROGRESS)
    one_step(divided, lambda table, piece: store.run(piece))
    later = divided.left_out("t", np.array([60, 120], np.int64), (1, 1))
    divided.add("t", replace(later, tenants=("a",)), (1, 1))
    divided.add("t", Piece(np.array([180, 240], np.int64), tenants=("a",)), (1, 1))
    computed = list[list[int]]()

    def run(table: str, piece: Piece) -> None:
        store.run(piece)
        if not piece.is_smallest:
            computed.append(piece.starts_s.tolist())

    while divided:
        one_step(divided, run)
    assert computed[:2] == [[120], [180, 240]] and not store.lacks()


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("count", [1, 100])
def test_nothing_is_divided_while_the_store_has_no_memory(in_order: bool, count: int) -> None:
    """A store with one tenant had its rollups in 64 pieces afterwards. All is computed with memory, and a tenant may never fit."""
    divided, has_memory, done = Divided(in_order=in_order), False, list[str]()

    def run(table: str, piece: Piece) -> None:
        (tenant,) = piece.tenants or ("",)
        if not has_memory or tenant == "tenant 9":
            raise REFUSED
        done.append(tenant)

    def fail() -> None:
        with pytest.raises(StoreUnavailable):
            while divided:
                one_step(divided, run)

    for number in range(count):
        divided.add("t", Piece(np.array([0, 60], np.int64), tenants=(f"tenant {number}",)), NO_PROGRESS)
    for _ in range(2 * count):
        fail()
    has_memory = True
    if count == 1:
        one_step(divided, run)
        assert done == ["tenant 0"] and not divided
        return
    for _ in range(100):
        fail()
    assert set(divided._works) == {"tenant 9"} and sorted(done) == sorted({f"tenant {number}" for number in range(count)} - {"tenant 9"})


@pytest.mark.parametrize("has_key", [False, True])
def test_a_minute_that_never_fits_keeps_no_other_of_its_tenant(has_key: bool) -> None:
    """Neither where it is the first, nor where one of its shares is what does not fit."""
    store, divided, never = Rolled({("a", 60): 300}), Divided(), 60
    store.rows = {("a", minute): 1 for minute in MINUTES}

    def run(table: str, piece: Piece) -> None:
        if never in piece.starts_s and (piece.number or not has_key):
            raise REFUSED
        store.run(piece)

    for minutes in ([60, 120, 180], [0], [240], [300]):
        divided.add("t", Piece(np.array(minutes, np.int64), tenants=("a",)), NO_PROGRESS)
    for _ in range(40):
        if store.lacks() != {("a", never)}:
            with contextlib.suppress(StoreUnavailable):
                one_step(divided, run)
    assert store.lacks() == {("a", never)}


def test_a_minute_that_never_fits_keeps_no_divided_one_of_its_tenant() -> None:
    """However many shares the other one has."""
    divided = Divided()

    def run(table: str, piece: Piece) -> None:
        if 0 in piece.starts_s or piece.shares < 8:
            raise REFUSED

    for minute in (0, 60):
        divided.add("t", Piece(np.array([minute], np.int64), tenants=("a",)), NO_PROGRESS)
    done = list[int]()
    # A call ends with the first failure of its only tenant.
    for _ in range(20):
        with contextlib.suppress(StoreUnavailable):
            for _, starts_s in divided.compute(run, lambda: False):
                done += starts_s.tolist()
    assert done == [60] and bool(divided)


@pytest.mark.parametrize("in_order", [False, True])
def test_tenants_that_never_fit_take_no_turn_of_another(in_order: bool) -> None:
    """In one call each of them fails once, and the other one is computed as a whole."""
    divided, failed, done = Divided(in_order=in_order), list[str](), list[int]()

    def run(table: str, piece: Piece) -> None:
        (tenant,) = piece.tenants or ("",)
        if tenant != "fits" or piece.shares < 64:
            failed.extend([tenant] * piece.is_smallest)
            raise REFUSED

    for tenant in (*(f"never {number}" for number in range(20)), "fits"):
        divided.add("t", Piece(np.array([0], np.int64), tenants=(tenant,)), NO_PROGRESS)

    def call() -> None:
        for _, starts_s in divided.compute(run, lambda: False):
            done.extend(starts_s.tolist())

    with pytest.raises(StoreUnavailable):
        call()
    assert done == [0] and sorted(failed) == sorted(f"never {number}" for number in range(20))


def test_a_store_that_is_away_ends_the_call() -> None:
    """Nothing else is tried."""
    divided, calls = Divided(), list[Piece]()

    def run(table: str, piece: Piece) -> None:
        calls.append(piece)
        raise StoreUnavailable("it does not answer")

    for tenant in "abc":
        divided.add("t", Piece(np.array([0], np.int64), tenants=(tenant,)), NO_PROGRESS)
    with pytest.raises(StoreUnavailable, match="does not answer"):
        one_step(divided, run)
    assert len(calls) == 1


def test_what_cannot_be_computed_stops_no_other_rollup(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is recorded, and the tenant has its turn in the next one."""
    put(store, long_streams(1, 0, THEN_NS), "heavy")
    rolling = rollup_worker(store)
    rolling.step()
    rolling._pending.divided.add("stream_minutes", Piece(np.array([THEN_NS // SECOND_NS], np.int64), tenants=("heavy",)), NO_PROGRESS)
    put(store, ExportTraceServiceRequest.FromString(spans([span(NATIVE, THEN_NS + MINUTE_NS, THEN_NS + MINUTE_NS + SECOND_NS)])), "other")
    with monkeypatch.context() as refusing:
        refusing.setattr(Divided, "_step", lambda *_: (_ for _ in ()).throw(REFUSED))
        rolling.step()
    assert streams(store)["other", 1] == 1 and rolling._pending.divided
    assert rolling._metrics.errors.labels("rollup", "StoreUnavailable")._value.get() == 1
    rolling.step()
    assert not rolling._pending.divided and differences(store) == []


def long_streams(count: int, first: int, start_ns: int) -> ExportTraceServiceRequest:
    """Streams that share long names in their resource, each with another route."""
    names = (b"service.name", b"gen_ai.request.model", b"gen_ai.provider.name", b"service.version", b"legato.emitter")
    made = [span([*NATIVE, (b"http.route", text(f"r{first + each}"))], start_ns, start_ns + SECOND_NS) for each in range(count)]
    body: ExportTraceServiceRequest = ExportTraceServiceRequest.FromString(spans(made, [(name, text("ü" * 1024)) for name in names]))
    return body


def put(store: Store, body: ExportTraceServiceRequest, tenant: str) -> None:
    """Store the streams of a request."""
    store.insert("stream_revs", received_spans(body, tenant=tenant, now_ns=time.time_ns(), limits=Limits()).revs)


def streams(store: Store) -> dict[tuple[str, int], int]:
    """Return how many streams the rollup has of each tenant and minute, counted from the first one."""
    rows = store.select("SELECT tenant, toUnixTimestamp(minute), sum(streams) FROM stream_minutes FINAL GROUP BY ALL")
    return {(str(tenant), (int(at) - THEN_NS // SECOND_NS) // 60): int(count) for tenant, at, count in rows}


def test_one_tenants_long_texts_keep_no_other_waiting(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside others in its minute and in the next one: they are computed in the first run, it in later ones, with later rows."""
    monkeypatch.setattr(pieces, "_MEMORY_MAX_BYTES", 16 * 2**20)
    monkeypatch.setattr(pieces, "_SHARES_MAX", 4)
    monkeypatch.setattr(worker, "_OLD_S_MAX", 0.0)
    monkeypatch.setattr(worker, "_DIVIDED_S", 0.0)
    put(store, long_streams(700, 0, THEN_NS), "heavy")
    for start_ns in (THEN_NS, THEN_NS + MINUTE_NS):
        for name in ("before", "later"):
            put(store, ExportTraceServiceRequest.FromString(spans([span(NATIVE, start_ns, start_ns + SECOND_NS)])), name)
    rolling = rollup_worker(store)
    rolling.step()
    found, divided = streams(store), rolling._pending.divided
    assert found.pop(("heavy", 0), 0) < 700 and found == {(name, minute): 1 for name in ("before", "later") for minute in (0, 1)}
    assert store.select("SELECT toUnixTimestamp64Milli(max(until)) FROM rollup_runs") == [(0,)]
    for _ in range(50):
        rolling.step()
        if any(work.next.number for works in divided._works.values() for work in works):
            break
    put(store, long_streams(2, 700, THEN_NS), "heavy")
    # The run goes on where the last one ended, computes the changed minute once more, and the next one its hour.
    monkeypatch.setattr(worker, "_OLD_S_MAX", 60.0)
    for _ in range(2):
        rolling.step()
    assert not divided and streams(store)["heavy", 0] == 702 and differences(store) == []
