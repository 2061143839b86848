"""The worker that exports verdicts: it sends the spans of stalled streams to a trace backend, each stream once.

It follows the attribution at a distance, so that late evidence has arrived. Its progress is a row of `trace_export_runs`, written after
the endpoint accepted the spans: after a crash in between, the same spans are sent again. While the endpoint does not answer, the worker
stays where it is and waits longer from try to try; no other work waits for it.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.metrics import Metrics
from legato_ingest.periodic import PeriodicWorker, always, record_run
from legato_ingest.settings import Settings
from legato_ingest.storage import Store
from legato_ingest.trace_export.endpoint import Endpoint, Refused, TryLater
from legato_ingest.trace_export.spans import StalledStream, request_of, stream_spans
from legato_ingest.trace_export.stalled_streams import pages_between

__all__ = ["TraceExportResult", "TraceExportWorker"]

_log = logging.getLogger("legato")
# Spans of one request: about half a megabyte. Collectors accept 20 MiB, others less.
_SPANS_MAX = 1_000
# Streams that were received longer ago are left out: an endpoint that was away for so long does not want them.
_AGE_MS_MAX = 24 * 3_600_000
# A run without spans is recorded this often, so that the next run does not look at the same streams again and again.
_RECORD_MS = 60_000
# Time of receipt that one query covers, so that a backlog of a day is not read again for each of its pages.
_STRETCH_MS = 300_000
_PAUSE_S, _PAUSE_S_MAX = 5.0, 300.0


@dataclass(slots=True)
class TraceExportResult:
    """What a run sent: the number of streams and of spans that the endpoint accepted."""

    streams: int = 0
    spans: int = 0


class TraceExportWorker(PeriodicWorker[TraceExportResult]):
    """Exports the spans of stalled streams. Owns ``store``, a separate handle. Without ``start()`` it runs only on ``step()``.

    Raises ``SettingsError`` if the settings of the endpoint are invalid.
    """

    def __init__(self, store: Store, settings: Settings, metrics: Metrics, my_turn: Callable[[], bool] = always) -> None:
        lag = metrics.trace_export_lag_seconds
        super().__init__("trace_export", store, settings.traces_export_every_s, metrics, my_turn=my_turn, lag=lag)
        self._store, self._metrics, self._endpoint = store, metrics, Endpoint(settings)
        self._settle_ms = int(settings.traces_export_settle_s * 1000)
        self._web_url, self._under_stream = settings.web_url, settings.traces_export_parent == "stream"
        self._started_ms = store.clock_ms()
        self._failures = 0
        self._not_before_s = 0.0

    def close(self) -> None:
        """Wait for the request in progress, then stop. The rest is exported after the next start."""
        super().close()
        self._endpoint.close()

    def _run(self) -> TraceExportResult:
        """Export the streams with verdicts that have settled since the last run. Most runs do nothing while the endpoint is away."""
        result = TraceExportResult()
        if time.monotonic() < self._not_before_s:
            return result
        started, settled = time.monotonic(), self._store.clock_ms() - self._settle_ms
        since = self._since(settled, started)
        until = min(settled, self._judged_until())
        try:
            while since < until and not self.stopping:
                to = min(until, since + _STRETCH_MS)
                self._export(since, to, result, started)
                since = self.until_ms = to
        except TryLater as failure:
            self._postpone(failure)
            return result
        self._failures = 0
        self.until_ms = settled
        return result

    def _export(self, since: int, until: int, result: TraceExportResult, started: float) -> None:
        """Send all pages, and record the progress after each. Raises ``TryLater``."""
        recorded = since
        for page in pages_between(self._store, since, until):
            for part in _parts(page.streams):
                if self.stopping:
                    return
                self._send(part, result)
            if page.until_ms > recorded:
                self._record(page.until_ms, result, started)
                recorded = page.until_ms
        if until > recorded and until - since > _RECORD_MS:
            self._record(until, result, started)

    def _send(self, streams: Sequence[StalledStream], result: TraceExportResult) -> None:
        """Send streams of one tenant. A request that is too large is halved; one that the endpoint refuses is counted and left out."""
        spans = [span for stream in streams for span in self._spans_of(stream)]
        try:
            rejected = self._endpoint.send(request_of(streams[0].tenant, spans))
        except Refused as refusal:
            if refusal.is_size and len(streams) > 1:
                half = len(streams) // 2
                self._send(streams[:half], result)
                self._send(streams[half:], result)
                return
            self._metrics.errors.labels("trace_export", refusal.reason).inc()
            self._metrics.trace_export_spans.labels("refused").inc(len(spans))
            _log.warning("the trace backend refused %d spans about stalls (%s); they are left out", len(spans), refusal)
            return
        rejected = min(rejected, len(spans))
        self._metrics.trace_export_spans.labels("exported").inc(len(spans) - rejected)
        self._metrics.trace_export_spans.labels("rejected").inc(rejected)
        result.streams += len(streams)
        result.spans += len(spans) - rejected

    def _spans_of(self, stream: StalledStream) -> list[Span]:
        return stream_spans(stream, self._web_url, under_stream=self._under_stream)

    def _postpone(self, failure: TryLater) -> None:
        """Wait for as long as the endpoint asked, or longer from failure to failure, with some chance in it."""
        pause_s = min(_PAUSE_S * 2**self._failures, _PAUSE_S_MAX) * random.uniform(0.5, 1.0)
        self._failures = min(self._failures + 1, 16)
        wait_s = pause_s if failure.after_s is None else max(failure.after_s, 1.0)
        self._not_before_s = time.monotonic() + wait_s
        self._metrics.errors.labels("trace_export", failure.reason).inc()
        _log.warning("the trace backend does not take spans about stalls (%s), trying again in %.0f s", failure.reason, wait_s)

    def _since(self, settled: int, started: float) -> int:
        """Return the time of receipt up to which earlier runs exported. The first run of all begins with this process."""
        ((recorded,),) = self._store.select("SELECT toUnixTimestamp64Milli(max(until)) FROM trace_export_runs")
        since, oldest = int(recorded), settled - _AGE_MS_MAX
        if since <= 0:
            since = min(settled, self._started_ms)
            self._record(since, TraceExportResult(), started)
            return since
        if since < oldest:
            self._metrics.errors.labels("trace_export", "TooOld").inc()
            _log.warning("stalls of streams that were received more than %d hours ago are not exported", _AGE_MS_MAX // 3_600_000)
            self._record(oldest, TraceExportResult(), started)
        return max(since, oldest)

    def _judged_until(self) -> int:
        """Return the time of receipt up to which all streams are judged."""
        return int(self._store.select("SELECT toUnixTimestamp64Milli(max(until)) FROM attribution_runs")[0][0])

    def _record(self, until_ms: int, result: TraceExportResult, started: float) -> None:
        record_run(self._store, "trace_export_runs", {"until": until_ms}, {"streams": result.streams, "spans": result.spans}, started)


def _parts(streams: Sequence[StalledStream]) -> Iterator[list[StalledStream]]:
    """Yield the streams in requests: each of one tenant, and with at most ``_SPANS_MAX`` spans."""
    part: list[StalledStream] = []
    spans = 0
    for stream in sorted(streams, key=lambda each: each.tenant):
        count = 1 + len(stream.stalls)
        if part and (part[0].tenant != stream.tenant or spans + count > _SPANS_MAX):
            yield part
            part, spans = [], 0
        part.append(stream)
        spans += count
    if part:
        yield part
