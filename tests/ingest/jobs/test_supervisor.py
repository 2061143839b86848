"""The workers of an instance stop together, also while a trace backend hangs."""

from __future__ import annotations

import time

from helpers.builders.stalled_streams import begin, stored
from helpers.servers.slow_backend import slow_backend
from legato_ingest.jobs.supervisor import Workers
from legato_ingest.metrics import Metrics
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.storage.watermark import now_ms
from legato_ingest.write.committer import Committer


def test_the_end_does_not_wait_for_a_trace_backend(store: Store) -> None:
    """A request hangs; its spans are sent after the next start, because the progress is not recorded."""
    begin(store)
    received_ms = now_ms() - 1000
    stored(store, 1, received_ms=received_ms)
    metrics = Metrics()
    committer = Committer(store, metrics, queue_bytes_max=2**26, chunks_max=10**6)
    with slow_backend(3600) as (url, arrived):
        settings = load(traces_export_endpoint=url, traces_export_settle_s=0, traces_export_every_s=0.01)
        workers = Workers(settings, store, committer, metrics)
        workers.start()
        assert arrived.wait(30)
        started = time.monotonic()
        workers.stop()
        assert workers.attribution.stopping and workers.rollups.stopping, "nothing is recorded from here on"
        with workers.closing(committer):
            pass
        assert time.monotonic() - started < 8, "the limit of a pause in a reply is 10 s"
    ((until_ms,),) = store.select("SELECT toUnixTimestamp64Milli(max(until)) FROM trace_export_runs")
    assert until_ms < received_ms and metrics.errors.labels("trace_export", "Stopped")._value.get() == 0
