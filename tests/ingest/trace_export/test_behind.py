"""The export passes a tenant with verdicts that are behind: the others do not wait, and each of its streams is exported once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from helpers.builders.stalled_streams import HOUR_MS, begin, stored
from helpers.servers.trace_backend import Answer, TraceBackend, trace_backend
from legato_ingest.metrics import Metrics
from legato_ingest.periodic import record_run
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.storage.judged import ALL_SHARDS, Key, Progress, aside_columns, judged_until
from legato_ingest.storage.watermark import now_ms
from legato_ingest.trace_export import stalled_streams, worker
from legato_ingest.trace_export.passed import Passed, parts_of, passed_until
from legato_ingest.trace_export.worker import TraceExportWorker

MINUTE_MS = 60_000


@pytest.fixture
def backend() -> Iterator[TraceBackend]:
    """A trace backend."""
    with trace_backend() as running:
        yield running


@pytest.fixture
def exporter(store: Store, backend: TraceBackend) -> Iterator[Callable[[], TraceExportWorker]]:
    """Makes workers without threads, which export at once."""
    made: list[TraceExportWorker] = []

    def make() -> TraceExportWorker:
        settings = load(traces_export_endpoint=backend.url, traces_export_settle_s=0)
        made.append(TraceExportWorker(store.clone(), settings, Metrics()))
        return made[-1]

    yield make
    for each in made:
        each.close()


def record(store: Store, others_ms: int, aside: dict[Key, int]) -> None:
    """Record that the attribution has come so far."""
    progress = Progress(others_ms, aside)
    times = {"until": progress.least_ms, "others_until": others_ms}
    record_run(store, "attribution_runs", times, {"shards": ALL_SHARDS}, 0.0, aside_columns(progress))


def part_of(store: Store, tenant: str) -> int:
    """The number of the part with a tenant."""
    return next(iter(parts_of(store, Progress(1, {tenant: 0}))))


@pytest.mark.parametrize("by", ["name", "part", "both"])
def test_a_tenant_that_is_behind_delays_no_other(
    store: Store, backend: TraceBackend, exporter: Callable[[], TraceExportWorker], by: str
) -> None:
    """All exports waited for it. It follows when its verdicts are there, also in another process, and each stream is sent once."""
    began = now_ms() - HOUR_MS
    begin(store)
    at = [began + minutes * MINUTE_MS for minutes in (10, 20, 30, 40)]
    for number, received_ms in enumerate(at):
        stored(store, 2, received_ms=received_ms, first=10 * number, tenant="shop")
        stored(store, 1, received_ms=received_ms, first=100 + 10 * number, tenant="hostile")
    store.command("TRUNCATE TABLE attribution_runs")
    part = part_of(store, "hostile")

    def behind(until_ms: int) -> dict[Key, int]:
        return {
            **({"hostile": until_ms} if by != "part" else {}),
            **({part: until_ms + (by == "both")} if by != "name" else {}),
        }

    record(store, at[1] + 1, behind(at[0] - 1))
    exports = exporter()
    assert exports.step().streams == 4 and passed_until(store).aside[part] < at[0]
    assert exports.until_ms < at[0], "the lag is that of the tenant"
    assert exports.step().streams == exporter().step().streams == 0
    record(store, at[2] + 1, behind(at[0] + 1))
    assert exporter().step().streams == 2 + 1
    # It follows the others, which go on.
    record(store, at[3] + 1, {})
    exports = exporter()
    assert exports.step().streams == 2 + 3
    assert exporter().step().streams == 0
    # An earlier version reads `until`, which is the time of all tenants.
    ((least_ms,),) = store.select("SELECT toUnixTimestamp64Milli(max(until)) FROM trace_export_runs")
    assert passed_until(store) == Passed(int(least_ms)) and int(least_ms) >= at[2]
    assert len(backend.copies) == len(backend.spans) == 2 * 12


def test_tenants_that_are_behind_take_turns(
    store: Store, backend: TraceBackend, exporter: Callable[[], TraceExportWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run has time for one; those with the same times follow together."""
    monkeypatch.setattr(worker, "_ASIDE_S", -1.0)
    began = now_ms() - HOUR_MS
    begin(store)
    tenants = [f"tenant-{number}" for number in range(40)]
    for number, tenant in enumerate((*tenants, "shop")):
        stored(store, 1, received_ms=began + 10 * MINUTE_MS, first=number, tenant=tenant)
    store.command("TRUNCATE TABLE attribution_runs")
    record(store, began + 20 * MINUTE_MS, dict.fromkeys(tenants, began + 1))
    exports = exporter()
    assert exports.step().streams == 1 and len(passed_until(store).aside) == len(tenants)
    # The first three have separate progress, the others are judged.
    record(store, began + 30 * MINUTE_MS, {tenant: began + (11 + place) * MINUTE_MS for place, tenant in enumerate(tenants[:3])})
    turns: list[int] = []
    while len(turns) < 60 and sum(turns) < len(tenants):
        turns.append(exports.step().streams)
    assert sum(turns) == len(tenants) and max(turns) >= 37
    assert len(backend.copies) == len(backend.spans) == 2 * 41


def test_tenants_with_pages_that_take_turns_are_exported_once(
    store: Store, backend: TraceBackend, exporter: Callable[[], TraceExportWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page ends within a millisecond. Its last streams were sent twice if a page of another tenant was recorded meanwhile."""
    monkeypatch.setattr(worker, "_ASIDE_S", -1.0)
    monkeypatch.setattr(stalled_streams, "_STREAMS_MAX", 5)
    began = now_ms() - HOUR_MS
    begin(store)
    for first, tenant in ((0, "a"), (100, "b")):
        for ms in range(6):
            stored(store, 2, received_ms=began + 10 * MINUTE_MS + ms, first=first + 2 * ms, tenant=tenant)
    store.command("TRUNCATE TABLE attribution_runs")
    record(store, began + 20 * MINUTE_MS, {"a": began + 1, "b": began + 2})
    exports = exporter()
    exports.step()
    record(store, began + 30 * MINUTE_MS, {"a": began + 11 * MINUTE_MS, "b": began + 12 * MINUTE_MS})
    for _ in range(12):
        exports.step()
    assert len(backend.copies) == len(backend.spans) == 2 * 24 and not exports._delivery._done


def test_a_tenant_that_falls_behind_after_a_failure_is_exported_once(
    store: Store, backend: TraceBackend, exporter: Callable[[], TraceExportWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint took its streams, and then none of another tenant: the progress does not say so, but the worker knows it still."""
    began = now_ms() - HOUR_MS
    begin(store)
    for first, tenant in ((0, "a"), (100, "z")):
        stored(store, 2, received_ms=began + 10 * MINUTE_MS, first=first, tenant=tenant)
    store.command("TRUNCATE TABLE attribution_runs")
    record(store, began + 20 * MINUTE_MS, {})
    backend.answers += [Answer(), Answer(503)]
    exports = exporter()
    assert exports.step().streams == 2
    record(store, began + 30 * MINUTE_MS, {"a": began + 20 * MINUTE_MS})
    monkeypatch.setattr(exports, "_not_before_s", 0.0)
    assert exports.step().streams == 2 and exports.step().streams == 0
    assert part_of(store, "a") in passed_until(store).aside
    assert len(backend.copies) == len(backend.spans) == 2 * 4


def test_an_error_at_spans_of_a_tenant_that_is_behind_delays_no_other(
    store: Store, backend: TraceBackend, exporter: Callable[[], TraceExportWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint fails at its stream, again and again: it is left out when requests of others have shown that the endpoint works."""
    began = now_ms() - HOUR_MS
    begin(store)
    stored(store, 1, received_ms=began + MINUTE_MS, tenant="hostile")
    ((poison,),) = store.select("SELECT trace_id FROM stream_revs")
    backend.rule = lambda spans: Answer(500) if spans[0].trace_id == bytes(poison) else None
    exports = exporter()
    record(store, began + 2 * MINUTE_MS, {"hostile": began})
    exports.step()
    for run in range(8):
        received_ms = began + (10 + run) * MINUTE_MS
        stored(store, 1, received_ms=received_ms, first=10 + run, tenant="shop")
        store.command("TRUNCATE TABLE attribution_runs")
        record(store, received_ms + 1, {"hostile": began + 2 * MINUTE_MS})
        monkeypatch.setattr(exports, "_not_before_s", 0.0)
        assert exports.step().streams >= 1 and passed_until(store).others_ms >= received_ms
    assert exports._metrics.trace_export_spans.labels("refused")._value.get() == 2
    assert min(passed_until(store).aside.values()) >= began + MINUTE_MS, "its other streams follow"


def test_what_an_earlier_version_exported_is_not_exported_again(store: Store) -> None:
    """It records one time for all tenants, before that of the others until it has come so far."""
    passed = Passed(now_ms(), {3: now_ms() - HOUR_MS, 4: now_ms() - MINUTE_MS})
    record_run(store, "trace_export_runs", passed.times(), {}, 0.0, passed.columns())
    assert passed_until(store) == passed
    until_ms = passed.others_ms - 10 * MINUTE_MS
    record_run(store, "trace_export_runs", {"until": until_ms}, {}, 0.0)
    assert passed_until(store) == Passed(passed.others_ms, {3: until_ms, 4: passed.aside[4]})
    record_run(store, "trace_export_runs", {"until": passed.others_ms}, {}, 0.0)
    assert passed_until(store) == Passed(passed.others_ms)


def test_a_tenant_that_stays_behind_is_left_out_after_a_day(
    store: Store, exporter: Callable[[], TraceExportWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its streams of the last day are not, and the export of the others goes on."""
    monkeypatch.setattr(worker, "_ASIDE_S", 600.0)
    now = now_ms()
    part = part_of(store, "hostile")
    passed = Passed(now - HOUR_MS, {part: now - 30 * HOUR_MS})
    record_run(store, "trace_export_runs", passed.times(), {}, 0.0, passed.columns())
    for number, hours in enumerate((26, 20)):
        stored(store, 1, received_ms=now - hours * HOUR_MS, first=number, tenant="hostile")
    stored(store, 1, received_ms=now - HOUR_MS // 2, first=9, tenant="shop")
    exports = exporter()
    assert judged_until(store).others_ms == now - HOUR_MS // 2
    assert exports.step().streams == 2 and not passed_until(store).aside
    assert exports._metrics.errors.labels("trace_export", "TooOld")._value.get() == 1
