"""Self-monitoring: Legato's own metrics become node samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from legato_ingest.errors import StoreUnavailable
from legato_ingest.jobs.self_monitoring import SelfMonitor, request_of
from legato_ingest.metrics import Metrics
from legato_ingest.storage import Store
from legato_ingest.write.committer import Committer


@pytest.fixture
def committer(store: Store) -> Iterator[tuple[Committer, Metrics]]:
    """A committer over the store, and its metrics."""
    metrics = Metrics()
    made = Committer(store, metrics, queue_bytes_max=2**26, chunks_max=10**6)
    yield made, metrics
    made.close()


def test_every_scraped_metric_is_a_sample(store: Store, committer: tuple[Committer, Metrics]) -> None:
    """Counters and a histogram's sum and count as sums, the rest as gauges, with their labels; the store's sizes among them."""
    open_committer, metrics = committer
    metrics.errors.labels("insert", "Timeout").inc(3)
    SelfMonitor(store, open_committer, metrics).step()
    open_committer.close()
    rows = {(name, tuple(sorted(labels.items()))): (kind, value) for name, labels, kind, value in store.select(
        "SELECT metric, mapFilter((k, v) -> k NOT IN ('service.name', 'host.name'), attributes), kind, value FROM node_samples"
    )}  # fmt: skip
    scraped = {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in Metrics().registry.collect()
        for sample in family.samples
        if not sample.name.endswith(("_created", "_bucket"))
    }
    assert scraped <= set(rows)
    assert rows["legato_errors_total", (("stage", "insert"), ("type", "Timeout"))] == ("sum", 3)
    kind, spent_s = rows["legato_cpu_seconds_total", ()]
    assert kind == "sum" and 0 < spent_s <= (metrics.registry.get_sample_value("legato_cpu_seconds_total") or 0)
    assert rows["legato_queue_bytes", ()][0] == "gauge" and rows["legato_commit_seconds_count", ()][0] == "sum"
    assert any(name == "legato_store_bytes" and value > 0 for (name, _), (_, value) in rows.items())
    ((hosts,),) = store.select("SELECT uniqExact(host) FROM node_samples WHERE host != ''")
    assert hosts == 1


def test_table_sizes_are_read_before_each_fourth_sample(
    store: Store, committer: tuple[Committer, Metrics], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sizes of a sample that failed are read for the next one."""
    open_committer, metrics = committer
    monitor, reading, sizes = SelfMonitor(store, open_committer, metrics), store.select, [0, 1, 2, 3]

    def select(sql: str) -> Sequence[Sequence[Any]]:
        if "system.parts" not in sql:
            return reading(sql)
        if not (size := sizes.pop(0)):
            raise StoreUnavailable("the store is away")
        return [("stream_revs", size, 1)]

    monkeypatch.setattr(store, "select", select)
    with pytest.raises(StoreUnavailable):
        monitor.step()
    for seen in (1, 1, 1, 1, 2):
        monitor.step()
        assert metrics.registry.get_sample_value("legato_store_bytes", {"table": "stream_revs"}) == seen


def test_a_request_names_each_metric_once() -> None:
    """As OTLP requires: all points of a metric are under one entry."""
    metrics = Metrics()
    for stage in ("insert", "commit"):
        metrics.errors.labels(stage, "X").inc()
    names = [each.name for each in request_of(metrics, "h", 1, 2).resource_metrics[0].scope_metrics[0].metrics]
    assert len(names) == len(set(names)) and "legato_errors_total" in names
