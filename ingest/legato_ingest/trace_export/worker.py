"""The worker that exports verdicts: it sends the spans of stalled streams to a trace backend, each stream once.

It follows the attribution at a distance, so that late evidence has arrived. Its progress is a row of `trace_export_runs`, written after
the endpoint accepted the spans: after a crash in between, the same spans are sent again. While the endpoint does not answer, the worker
stays where it is and waits longer from try to try; no other work waits for it. What becomes of each request is the matter of `delivery`.

A tenant with verdicts that are behind is passed, and follows for some seconds of each run when the others are done (`passed`).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.metrics import Metrics
from legato_ingest.periodic import PeriodicWorker, always, record_run
from legato_ingest.settings import Settings
from legato_ingest.storage import Store
from legato_ingest.storage.judged import judged_until
from legato_ingest.trace_export.delivery import Delivery
from legato_ingest.trace_export.endpoint import Endpoint
from legato_ingest.trace_export.passed import OTHERS, Passed, parts_of, passed_until
from legato_ingest.trace_export.replies import Failed, TryLater
from legato_ingest.trace_export.spans import StalledStream, stream_spans
from legato_ingest.trace_export.stalled_streams import pages_between

__all__ = ["TraceExportResult", "TraceExportWorker"]

_log = logging.getLogger("legato")
# Streams that were received longer ago are left out: an endpoint that was away for so long does not want them.
_AGE_MS_MAX = 24 * 3_600_000
# A run without spans is recorded this often, so that the next run does not look at the same streams again and again.
_RECORD_MS = 60_000
# Time of receipt that one query covers, so that a backlog of a day is not read again for each of its pages.
_STRETCH_MS = 300_000
# Else a stretch without stalls would never be recorded, and each run would read all of them again.
assert _STRETCH_MS > _RECORD_MS
# The progress may be later than now by this much, because clocks are set.
_AHEAD_MS_MAX = 60_000
_PAUSE_S, _PAUSE_S_MAX = 5.0, 300.0
# For so long in each run the tenants that are behind follow.
_ASIDE_S = 4.0


@dataclass(slots=True)
class TraceExportResult:
    """What a run sent: the number of streams and of spans that the endpoint accepted."""

    streams: int = 0
    spans: int = 0


class TraceExportWorker(PeriodicWorker[TraceExportResult]):
    """Exports the spans of stalled streams. Owns ``store``, a separate handle. Without ``start()`` it runs only on ``step()``.

    ``judged_ms`` returns the time (Unix ms) up to which the attribution of this process has judged all streams; it is used for the lag.
    Raises ``SettingsError`` if the settings of the endpoint are invalid.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        metrics: Metrics,
        my_turn: Callable[[], bool] = always,
        judged_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        every_s, settle_s = settings.traces_export_every_s, settings.traces_export_settle_s
        lag = metrics.trace_export_lag_seconds
        super().__init__("trace_export", store, every_s, metrics, my_turn=my_turn, lag=lag, settle_s=settle_s)
        self._store, self._metrics, self._endpoint = store, metrics, Endpoint(settings)
        self._delivery = Delivery(self._endpoint, self._spans_of, metrics)
        self._settle_ms = int(settle_s * 1000)
        self._judged_ms = judged_ms
        self._web_url, self._under_stream = settings.web_url, settings.traces_export_parent == "stream"
        self._started_ms = store.clock_ms()
        self._failures = 0
        self._not_before_s = 0.0
        self._is_ahead = False
        # The part with which the tenants that are behind begin: they take turns.
        self._first = 0

    def stop(self) -> None:
        """Begin no further request, and end the one in progress within half a second."""
        super().stop()
        self._endpoint.stop()

    def close(self) -> None:
        """Stop. The rest is exported after the next start, and so is a request in progress that takes longer than half a second."""
        self.stop()
        super().close()
        self._endpoint.close()

    def _run(self) -> TraceExportResult:
        """Export the streams with verdicts that have settled since the last run. Most runs do nothing while the endpoint is away."""
        if time.monotonic() < self._not_before_s:
            return TraceExportResult()
        started, now = time.monotonic(), self._store.clock_ms()
        settled = now - self._settle_ms
        self._delivery.begin()
        passed = self._since(settled, started)
        if self._progress_is_ahead(passed.others_ms, now):
            return TraceExportResult()
        judged = judged_until(self._store)
        until = min(settled, judged.others_ms)
        try:
            self._export_all(passed, until, parts_of(self._store, judged), started)
        except TryLater as failure:
            if not self.stopping:
                self._postpone(failure)
        else:
            self._failures = 0
            if not self.stopping:
                # Between the last row of the attribution and its progress in memory, there was nothing to judge.
                self.until_ms = passed.least_ms if passed.aside else max(until, min(settled, self._judged_ms()))
        return self._result()

    def _export_all(self, passed: Passed, until: int, judged_ms: Mapping[int, int], started: float) -> None:
        """Export for the others, then for the parts that are behind, judged until ``judged_ms`` (Unix ms).

        Raises ``TryLater``, also if the end is reached with a stream that is not done.
        """
        passed.put_aside(judged_ms, until)
        self._export_group(passed, OTHERS, until, started)
        self._export_aside(passed, judged_ms, started)
        doubt = self._delivery.doubt
        self._delivery.settle()
        if self._delivery.doubt:
            raise self._delivery.doubt
        if (passed.join() or doubt) and not self.stopping:
            self._record(passed, started)

    def _export_aside(self, passed: Passed, judged_ms: Mapping[int, int], started: float) -> None:
        """Export for the parts that are behind, each in its turn. After an error the next run begins with the same one."""
        end_s = time.monotonic() + _ASIDE_S
        groups = sorted(passed.groups(judged_ms), key=lambda group: (group[0][0] < self._first, group[0][0]))
        for numbers, until in groups:
            if not self._delivery.doubt:
                self._first = numbers[0]
            self._export_group(passed, numbers, until, started, end_s)
            if not self._delivery.doubt:
                self._first = numbers[0] + 1
            if self.stopping or time.monotonic() > end_s:
                return

    def _export_group(self, passed: Passed, group: Sequence[int], until: int, started: float, end_s: float = float("inf")) -> None:
        """Export stretch by stretch, until ``end_s`` (monotonic). Raises ``TryLater``."""
        while passed.since_ms(group) < until and not self.stopping:
            if not self._delivery.doubt:
                self.until_ms = passed.least_ms
            self._export(passed, group, min(until, passed.since_ms(group) + _STRETCH_MS), started, end_s)
            if time.monotonic() > end_s:
                return

    def _export(self, passed: Passed, group: Sequence[int], until: int, started: float, end_s: float) -> None:
        """Send all pages, and record the progress after each while all streams until there are done. Raises ``TryLater``."""
        since = recorded = passed.since_ms(group)
        for page in pages_between(self._store, since, until, passed.condition(group)):
            if self.stopping:
                return
            self._delivery.send(page.streams)
            passed.move(group, max(recorded, page.until_ms))
            if page.until_ms > recorded and not self._delivery.doubt:
                self._record(passed, started)
                recorded = page.until_ms
            if recorded > since and time.monotonic() > end_s:
                return
        passed.move(group, until)
        if until > recorded and until - since > _RECORD_MS and not self._delivery.doubt:
            self._record(passed, started)

    def _result(self) -> TraceExportResult:
        return TraceExportResult(self._delivery.streams, self._delivery.spans)

    def _spans_of(self, stream: StalledStream) -> list[Span]:
        return stream_spans(stream, self._web_url, under_stream=self._under_stream)

    def _postpone(self, failure: TryLater) -> None:
        """Wait for as long as the endpoint asked, or longer from failure to failure, with some chance in it."""
        if self._delivery.streams:
            # It took some: a limit of its rate, and not an endpoint that is away.
            self._failures = 0
        pause_s = min(_PAUSE_S * 2**self._failures, _PAUSE_S_MAX) * random.uniform(0.5, 1.0)
        self._failures = min(self._failures + 1, 16)
        wait_s = pause_s if failure.after_s is None else max(failure.after_s, 1.0)
        self._not_before_s = time.monotonic() + wait_s
        self._metrics.errors.labels("trace_export", failure.reason).inc()
        said = f": {failure.message}" if isinstance(failure, Failed) and failure.message else ""
        _log.warning("the trace backend does not take spans about stalls (%s%s), trying again in %.0f s", failure.reason, said, wait_s)

    def _since(self, settled: int, started: float) -> Passed:
        """Return the times of receipt up to which earlier runs exported. The first run of all begins with this process."""
        passed, oldest = passed_until(self._store), settled - _AGE_MS_MAX
        if passed.others_ms <= 0:
            passed = Passed(min(settled, self._started_ms))
            self._record(passed, started)
        elif passed.others_ms < oldest or passed.least_ms < oldest - _RECORD_MS:
            self._metrics.errors.labels("trace_export", "TooOld").inc()
            _log.warning("stalls of streams that were received more than %d hours ago are not exported", _AGE_MS_MAX // 3_600_000)
            passed.leave_out(oldest)
            self._record(passed, started)
        return passed

    def _progress_is_ahead(self, since: int, now: int) -> bool:
        """Return whether the progress is later than now: a clock was ahead. Its streams count as exported, so nothing is until then."""
        is_ahead = since > now + _AHEAD_MS_MAX
        if is_ahead:
            # From here on the lag grows.
            self.until_ms = min(self.until_ms, now)
        if is_ahead and not self._is_ahead:
            self._metrics.errors.labels("trace_export", "ClockAhead").inc()
            moment = datetime.fromtimestamp(since / 1000, UTC).isoformat(timespec="seconds")
            _log.error("a clock was ahead: stalls were exported up to %s, and none are until then", moment)
        self._is_ahead = is_ahead
        return is_ahead

    def _record(self, passed: Passed, started: float) -> None:
        result = self._result()
        counts = {"streams": result.streams, "spans": result.spans}
        record_run(self._store, "trace_export_runs", passed.times(), counts, started, passed.columns())
        self._delivery.recorded(passed.of_part)
