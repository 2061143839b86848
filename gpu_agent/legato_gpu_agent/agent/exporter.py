"""Exports flushes to the receiver as OTLP over HTTP, in order, with retries until they are acknowledged.

Flushes of steps wait at most 30 s for a flush of measurements that the receiver refuses for now: a limit on series lasts up to an hour.

A flush is encoded once and every attempt sends the same bytes, so a receiver that stored it without the acknowledgement arriving here
recognises the repetition. OpenTelemetry's own exporter drops a batch after 10 s and keeps none. The queue is bounded in bytes; beyond the
bound the oldest flush is dropped and counted. One thread sends over one connection, with the standard library's HTTP client. The module
does not depend on the contents of a flush.
"""

from __future__ import annotations

import email.utils
import http.client
import random
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from legato_gpu_agent import __version__
from legato_gpu_agent.agent.self_metrics import SelfMetrics
from legato_gpu_agent.agent.send_log import SendLog, status_advice

__all__ = ["METRICS", "TRACES", "Body", "Exporter", "parse_retry_after"]

TRACES, METRICS = "/v1/traces", "/v1/metrics"
_QUEUED = "queued records"
_SUBJECTS = {TRACES: "steps", METRICS: "measurements"}

QUEUE_BYTES_MAX = 32 * 2**20
_TIMEOUT_S = 10.0
_WAIT_FIRST_S, _WAIT_MAX_S = 0.5, 30.0
_RETRIED = (429, 502, 503, 504)
_RESPONSE_BYTES_MAX = 65_536
_HEADERS = {"Content-Type": "application/x-protobuf", "User-Agent": f"legato-gpu-agent/{__version__}"}


@dataclass(frozen=True, slots=True)
class Body:
    """An encoded flush, its number of records by kind, and the path of the receiver for it."""

    content: bytes
    records: Mapping[str, int]
    path: str = TRACES


class Exporter:
    """The queue of flushes for the receiver at ``endpoint``, with an optional token, and the thread that sends them."""

    def __init__(self, endpoint: str, metrics: SelfMetrics, token: str = "", queue_bytes_max: int = QUEUE_BYTES_MAX) -> None:
        self._headers = {**_HEADERS, "Authorization": f"Bearer {token}"} if token else _HEADERS
        self._endpoint, self._parts = endpoint, urlsplit(endpoint)
        self._metrics, self._bytes_max = metrics, queue_bytes_max
        self._send_log = SendLog(metrics)
        self._queue: deque[Body] = deque()
        self._bytes = 0
        self._busy = False
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._deadline = float("inf")
        self._connection: http.client.HTTPConnection | None = None
        self._thread = threading.Thread(target=self._run, name="legato-exporter", daemon=True)

    def start(self) -> None:
        """Start the sending thread."""
        self._thread.start()

    def export(self, body: Body) -> None:
        """Queue a flush without blocking.

        Beyond the bound the oldest flush of measurements is dropped, or else the oldest one of steps, because steps cannot be measured
        again.
        """
        with self._changed:
            self._queue.append(body)
            self._bytes += len(body.content)
            while self._bytes > self._bytes_max and len(self._queue) > 1:
                place = next((place for place, each in enumerate(self._queue) if each.path == METRICS), 0)
                oldest = self._queue[place]
                del self._queue[place]
                self._bytes -= len(oldest.content)
                self._drop(oldest, "queue_full")
                self._send_log.failed(_QUEUED, "full", f"the queue of {self._bytes_max} bytes is full: its oldest records are dropped")
            self._metrics.queue_bytes.set(self._bytes)
            self._changed.notify_all()

    def shutdown(self, timeout_s: float) -> bool:
        """Send the queue for at most ``timeout_s``; return whether everything was sent. The rest is counted as dropped."""
        self._deadline = time.monotonic() + timeout_s
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
        self._thread.join(timeout_s + 1.0)
        with self._changed:
            left = list(self._queue)
            self._queue.clear()
        for body in left:
            self._drop(body, "stopped")
        return not left and not self._busy

    def _run(self) -> None:
        while (body := self._next()) is not None:
            self._busy = not self._deliver(body)
            with self._changed:
                self._settle(body)
        self._disconnect()

    def _settle(self, body: Body) -> None:
        """Count a flush no longer as waiting. The caller holds the condition."""
        self._bytes -= len(body.content)
        self._metrics.queue_bytes.set(self._bytes)

    def _next(self) -> Body | None:
        """Wait for and return the oldest flush; ``None`` when the thread must end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing.is_set())
            if not self._queue or time.monotonic() >= self._deadline:
                return None
            self._busy = True
            return self._queue.popleft()

    def _deliver(self, body: Body) -> bool:
        """Send a flush until it is acknowledged or rejected; return false if the deadline passed before."""
        wait_s = _WAIT_FIRST_S
        while True:
            status, retry_after_s = self._attempt(body)
            if status and status not in _RETRIED:
                return True
            if status and body.path == METRICS:
                self._send_steps()
            # At least the exporter's own wait: a Retry-After of 0 or a past date would cause a busy loop. A receiver that names a longer
            # time does not increase the exporter's wait.
            own_s, requested_s = wait_s * random.uniform(0.5, 1.0), retry_after_s or 0.0
            if requested_s <= own_s:
                wait_s = min(wait_s * 2, _WAIT_MAX_S)
            if not self._pause(max(own_s, requested_s)):
                self._drop(body, "stopped")
                return False

    def _send_steps(self) -> None:
        """Send the flushes of steps that wait, in order, until one is not acknowledged: a limit on measurements must not delay them."""
        while (body := self._pop_steps()) is not None:
            status, _ = self._attempt(body)
            with self._changed:
                if not status or status in _RETRIED:
                    self._queue.appendleft(body)
                    return
                self._settle(body)

    def _pop_steps(self) -> Body | None:
        """Return the oldest flush of steps, which is no longer in the queue; ``None`` without one."""
        with self._changed:
            place = next((place for place, each in enumerate(self._queue) if each.path == TRACES), None)
            if place is None or time.monotonic() >= self._deadline:
                return None
            body = self._queue[place]
            del self._queue[place]
            return body

    def _pause(self, seconds: float) -> bool:
        """Wait before the next attempt; while closing at most 0.2 s. Return false when the deadline has passed."""
        self._closing.wait(min(seconds, _WAIT_MAX_S))
        if not self._closing.is_set():
            return True
        left_s = self._deadline - time.monotonic()
        time.sleep(max(min(seconds, left_s, 0.2), 0))
        return left_s > 0

    def _attempt(self, body: Body) -> tuple[int, float | None]:
        """Make one request and count its result; return the status (0: no response) and the wait that the receiver requests in s."""
        try:
            status, response, retry_after = self._request(body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            # An invalid host name (an empty label, or one of more than 63 letters) raises UnicodeError, a ValueError.
            self._disconnect()
            self._metrics.errors.labels(type(error).__name__).inc()
            fault = f"cannot be reached ({type(error).__name__}: {error})"
            self._log_failure(body, "kept and sent again", "unreachable", fault, "start `legato serve`, or correct LEGATO_ENDPOINT")
            return 0, None
        if status == 200:
            self._count_sent(body, response)
        else:
            self._count_failed(body, status)
        return status, parse_retry_after(retry_after, time.time())

    def _request(self, body: Body) -> tuple[int, bytes, str | None]:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
            self._connection = kind(self._parts.hostname or "", self._parts.port, timeout=_TIMEOUT_S)
        self._connection.timeout = max(min(_TIMEOUT_S, self._deadline - time.monotonic()), 0.2)
        self._connection.request("POST", self._parts.path.rstrip("/") + body.path, body.content, self._headers)
        response = self._connection.getresponse()
        data = response.read(_RESPONSE_BYTES_MAX)
        if response.read(1) or response.will_close:
            self._disconnect()
        return response.status, data, response.headers.get("Retry-After")

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _count_failed(self, body: Body, status: int) -> None:
        """Count an attempt that was answered with another status than 200; unless it is retried, the flush is dropped."""
        self._metrics.errors.labels(f"status_{status}").inc()
        if status not in _RETRIED:
            self._drop(body, "refused")
        outcome = "kept and sent again" if status in _RETRIED else "dropped"
        self._log_failure(body, outcome, f"status {status}", f"answers {status}", status_advice(status))

    def _log_failure(self, body: Body, outcome: str, fault: str, found: str, advice: str) -> None:
        subject = _SUBJECTS[body.path]
        self._send_log.failed(subject, fault, f"{self._endpoint}{body.path} {found}, {subject} are {outcome}: {advice}")

    def _count_sent(self, body: Body, response: bytes) -> None:
        """Count accepted and rejected records. A flush of steps is one span, so one rejected span means that all its records are."""
        rejected = _rejected(body, response)
        if rejected:
            self._log_failure(body, "dropped in part", "rejected", f"rejects {rejected}", "see the table `rejected` and the receiver's log")
        else:
            self._send_log.worked(_SUBJECTS[body.path])
        if not self._queue:
            self._send_log.worked(_QUEUED)
        for kind, count in body.records.items():
            lost = min(rejected if body.path == METRICS else count * bool(rejected), count)
            self._metrics.sent.labels(kind).inc(count - lost)
            if lost:
                self._metrics.dropped.labels(kind, "rejected").inc(lost)

    def _drop(self, body: Body, reason: str) -> None:
        for kind, count in body.records.items():
            self._metrics.dropped.labels(kind, reason).inc(count)


def _rejected(body: Body, response: bytes) -> int:
    """Return the number of rejected spans or data points of a partial success; 0 for a response that cannot be parsed."""
    try:
        if body.path == METRICS:
            return int(ExportMetricsServiceResponse.FromString(response).partial_success.rejected_data_points)
        return int(ExportTraceServiceResponse.FromString(response).partial_success.rejected_spans)
    except Exception:
        return 0


def parse_retry_after(retry_after: str | None, now_s: float) -> float | None:
    """Return the seconds of a Retry-After header, which is a number or a date; ``None`` for anything else."""
    if not retry_after:
        return None
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        return max(email.utils.parsedate_to_datetime(retry_after).timestamp() - now_s, 0.0)
    except (TypeError, ValueError, OverflowError):
        return None
