"""The worker that exports verdicts, on a real store and against an HTTP server: once, in order, and never in vain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from helpers.builders.judging import PARTS, worker
from helpers.builders.stalled_streams import HOUR_MS, begin, stored
from helpers.builders.world_spans import put, trace_id
from helpers.servers.trace_backend import Answer, TraceBackend, trace_backend
from legato_ingest.metrics import Metrics
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.storage.watermark import now_ms
from legato_ingest.trace_export import delivery, stalled_streams
from legato_ingest.trace_export.worker import TraceExportWorker

LAG = "legato_trace_export_lag_seconds"
Exporter = Callable[..., TraceExportWorker]


@pytest.fixture
def backend() -> Iterator[TraceBackend]:
    """A trace backend."""
    with trace_backend() as running:
        yield running


@pytest.fixture
def exporter(store: Store, backend: TraceBackend) -> Iterator[Exporter]:
    """Makes workers without threads, which export at once."""
    made: list[TraceExportWorker] = []

    def make(judged_ms: Callable[[], int] = now_ms, **settings: Any) -> TraceExportWorker:
        own = load(traces_export_endpoint=backend.url, **{"traces_export_settle_s": 0, **settings})
        made.append(TraceExportWorker(store.clone(), own, Metrics(), judged_ms=judged_ms))
        return made[-1]

    yield make
    for each in made:
        each.close()


def lag_s(exports: TraceExportWorker) -> float:
    """The lag in the metrics."""
    return next(each.value for family in exports._metrics.registry.collect() for each in family.samples if each.name == LAG)


def judged(store: Store, *parts: str) -> None:
    """Store these parts of the world with one stall, and judge it."""
    for name in parts:
        put(store, PARTS[name](), now_ms() * 1_000_000)
    while not worker(store).step().verdicts:
        pass


def progress_ms(store: Store) -> int:
    """The progress in the store."""
    return int(store.select("SELECT toUnixTimestamp64Milli(max(until)) FROM trace_export_runs")[0][0])


def test_a_stall_is_exported_once(store: Store, backend: TraceBackend, exporter: Exporter) -> None:
    """When it has settled; and not again by another worker, nor when late evidence changes the verdict afterwards."""
    begin(store)
    judged(store, "client", "server")
    assert exporter(traces_export_settle_s=600).step().spans == 0
    first = exporter()
    result = first.step()
    assert (result.streams, result.spans) == (1, 2)
    assert sorted(span.name for span in backend.spans.values()) == ["legato stalls", "stall: generation"]
    assert {span.trace_id for span in backend.copies} == {trace_id(0)}
    judged(store, "steps")
    assert store.select("SELECT cause FROM verdicts FINAL") == [("host",)]
    assert first.step().spans == exporter().step().spans == 0 and backend.requests == 1


def test_streams_that_are_not_judged_yet_wait(store: Store, backend: TraceBackend, exporter: Exporter) -> None:
    """The export follows the attribution."""
    begin(store)
    put(store, PARTS["client"](), now_ms() * 1_000_000)
    exports = exporter()
    assert exports.step().spans == 0
    judged(store, "server")
    assert exports.step().spans == 2


def test_the_first_run_exports_no_history(store: Store, backend: TraceBackend, exporter: Exporter) -> None:
    """Streams from before the endpoint was set; nor, with a count, those of more than a day ago."""
    stored(store, 3, received_ms=now_ms() - 30 * HOUR_MS)
    assert exporter().step().spans == 0 and backend.requests == 0
    store.command("TRUNCATE TABLE trace_export_runs")
    begin(store, 40 * HOUR_MS)
    exports = exporter()
    assert exports.step().spans == 0 and backend.requests == 0
    assert exports._metrics.errors.labels("trace_export", "TooOld")._value.get() == 1


def test_each_stream_is_in_one_page(store: Store, backend: TraceBackend, exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that were received in one ms, in pages and requests that are smaller than that, of two tenants."""
    monkeypatch.setattr(stalled_streams, "_STREAMS", stalled_streams._STREAMS.replace("LIMIT 250", "LIMIT 7"))
    monkeypatch.setattr(stalled_streams, "_STREAMS_MAX", 7)
    monkeypatch.setattr(delivery, "_SPANS_MAX", 5)
    begin(store)
    at = now_ms() - HOUR_MS // 2
    stored(store, 20, received_ms=at)
    stored(store, 10, received_ms=at, first=100, tenant="acme")
    stored(store, 14, received_ms=at + 5, first=200)
    assert exporter().step().streams == 44
    assert len(backend.copies) == len(backend.spans) == 2 * 44
    assert exporter().step().spans == 0


def test_a_stream_of_many_stalls_is_bounded(store: Store, backend: TraceBackend, exporter: Exporter) -> None:
    """The longest have a span; the sums are those of all."""
    begin(store)
    stored(store, 1, stalls=300, received_ms=now_ms() - 1000)
    assert exporter().step().spans == 1 + stalled_streams.STALLS_MAX
    whole = next(span for span in backend.copies if span.name == "legato stalls")
    assert {each.key: each.value.int_value for each in whole.attributes}["legato.stall.count"] == 300
    assert min(span.end_time_unix_nano - span.start_time_unix_nano for span in backend.copies) == (250_000 + 172) * 1000


def test_an_endpoint_that_is_away_costs_no_span(
    store: Store, backend: TraceBackend, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker waits for as long as it is asked to, and counts the failure."""
    begin(store)
    stored(store, 3, received_ms=now_ms() - 1000)
    backend.answers += [Answer(503, {"Retry-After": "600"}), Answer(401)]
    exports = exporter()
    assert exports.step().spans == 0 and exports._not_before_s > 0
    assert exports.step().spans == 0 and backend.requests == 1, "it asked for ten minutes"
    monkeypatch.setattr(exports, "_not_before_s", 0.0)
    assert exports.step().spans == 0 and backend.requests == 2
    monkeypatch.setattr(exports, "_not_before_s", 0.0)
    assert exports.step().spans == 6 and len(backend.spans) == 6
    errors = {reason: exports._metrics.errors.labels("trace_export", reason)._value.get() for reason in ("Http503", "Http401")}
    assert errors == {"Http503": 1, "Http401": 1} and exports._failures == 0


def test_refused_spans_do_not_hold_up_the_rest(store: Store, backend: TraceBackend, exporter: Exporter) -> None:
    """A request that is too large is cut; a stream that is refused alone is counted."""
    begin(store)
    stored(store, 4, received_ms=now_ms() - 1000)
    # Four streams, then two, then one, which is refused; the other three arrive.
    backend.answers += [Answer(413), Answer(413), Answer(413)]
    exports = exporter()
    assert exports.step().streams == 3 and len(backend.spans) == 6
    counted = {name: exports._metrics.trace_export_spans.labels(name)._value.get() for name in ("exported", "refused", "rejected")}
    assert counted == {"exported": 6, "refused": 2, "rejected": 0}
    assert exports.step().spans == 0


def test_the_lag_is_that_of_what_waits(store: Store, backend: TraceBackend, exporter: Exporter) -> None:
    """After a restart with a backlog as well, behind the attribution as well, and without the time to settle."""
    begin(store, 5 * HOUR_MS)
    stored(store, 1, received_ms=now_ms() - 4 * HOUR_MS)
    backend.answers.append(Answer(503))
    exports = exporter()
    exports.step()
    assert lag_s(exports) == pytest.approx(4 * 3600, abs=400)
    late, current = exporter(lambda: now_ms() - 3 * HOUR_MS), exporter(traces_export_settle_s=7200)
    late.step()
    current.step()
    assert lag_s(late) == pytest.approx(3 * 3600, abs=60) and len(backend.spans) == 2
    assert current.until_ms < now_ms() - 7_199_000 and lag_s(current) < 60


def test_a_clock_that_was_ahead_is_an_error(store: Store, exporter: Exporter) -> None:
    """One, however long, because nothing is exported until then."""
    begin(store, -24 * HOUR_MS)
    stored(store, 1, received_ms=now_ms() - 1000)
    exports = exporter()
    assert exports.step().spans == exports.step().spans == 0
    assert exports._metrics.errors.labels("trace_export", "ClockAhead")._value.get() == 1


def test_the_progress_stays_before_a_stream_in_doubt(
    store: Store, backend: TraceBackend, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint fails at one stream, which is alone. It is refused when later streams show that the endpoint works."""
    at = now_ms() - HOUR_MS // 2
    begin(store)
    stored(store, 1, received_ms=at)
    ((poison,),) = store.select("SELECT trace_id FROM stream_revs")
    backend.rule = lambda spans: Answer(500) if spans[0].trace_id == bytes(poison) else None
    exports = exporter()
    for _ in range(7):
        monkeypatch.setattr(exports, "_not_before_s", 0.0)
        assert exports.step().spans == 0 and progress_ms(store) < at
    assert lag_s(exports) == pytest.approx(1800, abs=400)
    stored(store, 2, first=10, received_ms=now_ms() - 1000)
    monkeypatch.setattr(exports, "_not_before_s", 0.0)
    assert exports.step().streams == 2 and progress_ms(store) > at
    assert exports._metrics.trace_export_spans.labels("refused")._value.get() == 2 and exports.step().spans == 0
