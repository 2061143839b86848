"""Writer heartbeats: the common watermark of several writers, and writers that stop."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from legato_ingest.jobs.writer_heartbeat import WriterHeartbeat
from legato_ingest.metrics import Metrics
from legato_ingest.storage import Store


def writers(store: Store, name: str, own_ms: Callable[[], int]) -> WriterHeartbeat:
    return WriterHeartbeat(store, name, own_ms, own_ms, Metrics())


def test_the_watermark_is_that_of_the_slowest_writer(shared: Store) -> None:
    """Of the live writers; the own watermark is always current."""
    times = {"a": 5000, "b": 7000}
    kept = {name: writers(shared, name, lambda name=name: times[name]) for name in times}  # type: ignore[misc]
    for each in kept.values():
        each.beat()
    assert [each.watermark_ms() for each in kept.values()] == [5000, 5000]
    times["a"] = 6000
    assert [each.watermark_ms() for each in kept.values()] == [5000, 5000]
    kept["a"].beat()
    assert [each.watermark_ms() for each in kept.values()] == [6000, 6000]
    times["b"] = 5500
    assert kept["b"].watermark_ms() == 5500


def test_a_silent_writer_is_left_out(shared: Store) -> None:
    """A dead writer does not hold up the others; a writer that missed its heartbeat counts an error."""
    moment = pa.timestamp("ms", "UTC")
    old = {
        "tenant": pa.array([""]),
        "writer": pa.array(["dead"]),
        "settled_at": pa.array([1000], moment),
        "seen_at": pa.array([10**12], moment),
    }
    shared.insert("writers", pa.table(old))
    metrics = Metrics()
    one = WriterHeartbeat(shared, "one", lambda: 9000, lambda: 9000, metrics)
    one.beat()
    assert one.watermark_ms() == 9000
    one._beat_at -= 100
    one.beat()
    assert metrics.errors.labels("writers", "HeartbeatMissed")._value.get() == 1


def test_rollups_wait_for_the_verdicts_of_all_instances(shared: Store) -> None:
    """The own ones count as they are now. An instance of an earlier version writes no time of its verdicts: that of its rows counts."""
    one = WriterHeartbeat(shared, "one", lambda: 9000, lambda: 8000, Metrics())
    two = WriterHeartbeat(shared, "two", lambda: 9000, lambda: 3000, Metrics())
    assert one.judged_watermark_ms() == 8000
    two.beat()
    assert (one.judged_watermark_ms(), two.judged_watermark_ms(), one.watermark_ms()) == (3000, 3000, 9000)
    shared.command("TRUNCATE TABLE writers")
    shared.insert("writers", pa.table({"tenant": [""], "writer": ["earlier"], "settled_at": pa.array([5000], pa.timestamp("ms", "UTC"))}))
    assert one.judged_watermark_ms() == 5000
