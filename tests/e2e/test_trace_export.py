"""`legato serve` is killed after the trace backend got its spans and before the progress was recorded. After a restart none is missing."""

from __future__ import annotations

import pathlib
import random
import time

import httpx

from helpers.builders.spans import SECOND_NS, native_span, request
from helpers.servers.serving import Served, serve_process
from helpers.servers.trace_backend import TraceBackend, trace_backend
from helpers.servers.waiting import until
from legato._timeline import pack

STREAMS = 12
PROTOBUF = {"Content-Type": "application/x-protobuf"}
FAST = {"LEGATO_ATTRIBUTE_EVERY_S": "0.1", "LEGATO_ATTRIBUTE_GRACE_S": "0", "LEGATO_TRACES_EXPORT_EVERY_S": "0.1"}


def settings(backend: TraceBackend) -> dict[str, str]:
    """The settings of an export soon after the receipt."""
    headers = {"LEGATO_TRACES_EXPORT_HEADERS": "Authorization=Bearer%20abc", "LEGATO_WEB_URL": "https://legato.example"}
    return {**FAST, **headers, "LEGATO_TRACES_EXPORT_ENDPOINT": backend.url, "LEGATO_TRACES_EXPORT_SETTLE_S": "1"}


def post(served: Served, body: bytes) -> None:
    """Send a request body, which must be accepted."""
    reply = httpx.post(f"{served.otlp}/v1/traces", content=body, headers=PROTOBUF)
    assert reply.status_code == 200 and not reply.content


def stalled_streams(seed: int) -> bytes:
    """Streams with a gap of 825 ms."""
    body, rng = request(), random.Random(seed)
    for _ in range(STREAMS):
        times = [*range(400_000, 900_000, 25_000), *range(1_700_000, 1_900_000, 25_000)]
        attributes = {"legato.stream.timeline": pack(times, None, None, [1] * len(times))}
        native_span(body, attributes, start_ns=time.time_ns() - 5 * SECOND_NS, rng=rng)
    return bytes(body.SerializeToString())


def test_a_kill_before_the_progress_is_recorded_loses_no_span(tmp_path: pathlib.Path) -> None:
    """The spans are sent again with the same ids and contents, and spans that come back are no streams."""
    with trace_backend() as backend:
        with serve_process(tmp_path / "store", **settings(backend)) as served:
            backend.before_reply = served.process.kill
            post(served, stalled_streams(1))
            until(lambda: served.process.poll() is not None)
        backend.before_reply = lambda: None
        before = backend.spans
        assert len(backend.bodies) == 1 and len(before) > STREAMS
        with serve_process(tmp_path / "store", **settings(backend)) as served:
            until(lambda: len(backend.copies) == 2 * len(before))
            assert backend.spans == before
            post(served, stalled_streams(2))
            until(lambda: len(backend.spans) == 2 * len(before))
            assert len(backend.copies) == 3 * len(before)
            for body in backend.bodies:
                post(served, body)
            # Requests are counted when they are inserted; a reader waits for that.
            httpx.post(served.read, content="SELECT 1").raise_for_status()
            metrics = httpx.get(f"{served.otlp}/metrics").text
        assert f'legato_ignored_spans_total{{reason="verdict",scope="legato.verdicts"}} {len(backend.copies):.1f}' in metrics
        assert f"legato_stored_spans_total {STREAMS:.1f}" in metrics
        assert {headers["Authorization"] for headers in backend.headers} == {"Bearer abc"}
