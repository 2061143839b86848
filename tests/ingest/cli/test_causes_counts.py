"""Which streams the figures of `legato blame` count: those of the judged vantage."""

from __future__ import annotations

import time

from helpers.servers.command import read_json, read_text
from helpers.servers.reading import reading, stream, streams_in
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.metrics import Metrics
from legato_ingest.settings import load
from legato_ingest.storage import Store

STALLED = (20.0,) * 20 + (700.0,) + (20.0,) * 20


def judge(store: Store) -> None:
    """Judge all streams."""
    AttributionWorker(store, load(attribute_grace_s=0, stall_ms=100), Metrics()).again(0)


def test_verdicts_of_a_server_are_not_counted_once_its_client_is_judged(store: Store) -> None:
    """The server's two were withdrawn; three of four stalls are judged, and one was open at its stream's end."""
    begun, trace = time.time_ns() - 60 * 10**9, b"t" * 16
    made = {"trace_id": trace, "start_ns": begun}
    for vantage, gaps in (("server", STALLED * 2), ("client", STALLED * 3)):
        streams_in(store, [stream(gaps, attributes={"legato.stream.vantage": vantage}, **made)], seed=len(gaps))
        if vantage == "server":
            judge(store)
    streams_in(store, [stream((20.0,) * 30, end_ms=900, attributes={"legato.stream.outcome": "client_cancel"})], seed=1)
    judge(store)
    assert store.select("SELECT countIf(cause = 'base'), count() FROM verdicts FINAL") == [(2, 5)]
    with reading(store) as url:
        found, page = read_json(url, "blame"), read_text(url, "blame")
    assert (found["stalls_250ms_judged"], found["stalls_250ms"]) == (3, 4)
    assert "1 of 4 stalls of 250 ms or more have no verdict" in " ".join(page.split())
