"""Sends flushes to the receiver: OTLP over HTTP, in order, again and again until they are acknowledged.

One idea: a flush is encoded once, and its bytes are what every attempt sends, so a receiver that took it without our learning of it takes
it once. OpenTelemetry's own exporter gives a batch up after ten seconds, and keeps none. The queue is bounded in bytes: the oldest flush
goes, and is counted. One thread, the standard library's HTTP client, one connection. It knows nothing of engines.
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
from legato_gpu_agent.agent.self_metrics import Metrics

__all__ = ["METRICS", "TRACES", "Body", "Post", "wait_of"]

TRACES, METRICS = "/v1/traces", "/v1/metrics"

QUEUE_BYTES_MAX = 32 * 2**20
_TIMEOUT_S = 10.0
_WAIT_FIRST_S, _WAIT_MAX_S = 0.5, 30.0
_RETRIED = (429, 502, 503, 504)
_ANSWER_BYTES_MAX = 65_536
_HEADERS = {"Content-Type": "application/x-protobuf", "User-Agent": f"legato-gpu-agent/{__version__}"}


@dataclass(frozen=True, slots=True)
class Body:
    """An encoded flush, how many records of each kind it holds, and at which of the receiver's paths it is taken."""

    content: bytes
    records: Mapping[str, int]
    path: str = TRACES


class Post:
    """The queue before the receiver at ``endpoint``, which may want a token, and the thread that empties it."""

    def __init__(self, endpoint: str, metrics: Metrics, token: str = "", queue_bytes_max: int = QUEUE_BYTES_MAX) -> None:
        self._headers = {**_HEADERS, "Authorization": f"Bearer {token}"} if token else _HEADERS
        self._parts = urlsplit(endpoint)
        self._metrics, self._bytes_max = metrics, queue_bytes_max
        self._queue: deque[Body] = deque()
        self._bytes = 0
        self._busy = False
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._deadline = float("inf")
        self._connection: http.client.HTTPConnection | None = None
        self._thread = threading.Thread(target=self._run, name="legato-post", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def put(self, body: Body) -> None:
        """Queue a flush; never waits. Beyond the bound the oldest is given up: of samples before steps, which nobody can sample again."""
        with self._changed:
            self._queue.append(body)
            self._bytes += len(body.content)
            while self._bytes > self._bytes_max and len(self._queue) > 1:
                place = next((place for place, each in enumerate(self._queue) if each.path == METRICS), 0)
                oldest = self._queue[place]
                del self._queue[place]
                self._bytes -= len(oldest.content)
                self._give_up(oldest, "queue_full")
            self._metrics.queue_bytes.set(self._bytes)
            self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """Send what is queued, for at most this long; whether all of it went. What is left is counted as dropped."""
        self._deadline = time.monotonic() + timeout_s
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
        self._thread.join(timeout_s + 1.0)
        with self._changed:
            left = list(self._queue)
            self._queue.clear()
        for body in left:
            self._give_up(body, "stopped")
        return not left and not self._busy

    def _run(self) -> None:
        while (body := self._next()) is not None:
            self._busy = not self._deliver(body)
            with self._changed:
                self._bytes -= len(body.content)
                self._metrics.queue_bytes.set(self._bytes)
        self._disconnect()

    def _next(self) -> Body | None:
        """The oldest flush; nothing when it is time to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing.is_set())
            if not self._queue or time.monotonic() >= self._deadline:
                return None
            self._busy = True
            return self._queue.popleft()

    def _deliver(self, body: Body) -> bool:
        """Until it is acknowledged or refused for good; false when time was up before."""
        wait_s = _WAIT_FIRST_S
        while True:
            status, retry_after_s = self._attempt(body)
            if status and status not in _RETRIED:
                return True
            # At least the own pause, whatever was asked for: of "now" or a date that is past there would be no end. A receiver that says
            # how long is not waited for longer and longer.
            own_s, asked_s = wait_s * random.uniform(0.5, 1.0), retry_after_s or 0.0
            if asked_s <= own_s:
                wait_s = min(wait_s * 2, _WAIT_MAX_S)
            if not self._pause(max(own_s, asked_s)):
                self._give_up(body, "stopped")
                return False

    def _pause(self, seconds: float) -> bool:
        """Wait before the next attempt. While closing, shorter, and false when time is up."""
        self._closing.wait(min(seconds, _WAIT_MAX_S))
        if not self._closing.is_set():
            return True
        left_s = self._deadline - time.monotonic()
        time.sleep(max(min(seconds, left_s, 0.2), 0))
        return left_s > 0

    def _attempt(self, body: Body) -> tuple[int, float | None]:
        """One request: the status (0: no answer), and how long the receiver asks to wait. Counts what came of it."""
        try:
            status, answer, retry_after = self._request(body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            # A host that is no name (an empty label, one of more than 63 letters) is a UnicodeError, which is a ValueError.
            self._disconnect()
            self._metrics.errors.labels(type(error).__name__).inc()
            return 0, None
        if status == 200:
            self._acknowledged(body, answer)
        else:
            self._metrics.errors.labels(f"status_{status}").inc()
            if status not in _RETRIED:
                self._give_up(body, "refused")
        return status, wait_of(retry_after, time.time())

    def _request(self, body: Body) -> tuple[int, bytes, str | None]:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
            self._connection = kind(self._parts.hostname or "", self._parts.port, timeout=_TIMEOUT_S)
        self._connection.timeout = max(min(_TIMEOUT_S, self._deadline - time.monotonic()), 0.2)
        self._connection.request("POST", self._parts.path.rstrip("/") + body.path, body.content, self._headers)
        answer = self._connection.getresponse()
        data = answer.read(_ANSWER_BYTES_MAX)
        if answer.read(1) or answer.will_close:
            self._disconnect()
        return answer.status, data, answer.headers.get("Retry-After")

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _acknowledged(self, body: Body, answer: bytes) -> None:
        """A flush of steps is one span: a partial success without it means that all was rejected. Of samples some may be."""
        rejected = _rejected(body, answer)
        for kind, count in body.records.items():
            refused = min(rejected if body.path == METRICS else count * bool(rejected), count)
            self._metrics.sent.labels(kind).inc(count - refused)
            if refused:
                self._metrics.dropped.labels(kind, "rejected").inc(refused)

    def _give_up(self, body: Body, reason: str) -> None:
        for kind, count in body.records.items():
            self._metrics.dropped.labels(kind, reason).inc(count)


def _rejected(body: Body, answer: bytes) -> int:
    """How many spans or data points were refused for good; none where the answer cannot be read."""
    try:
        if body.path == METRICS:
            return int(ExportMetricsServiceResponse.FromString(answer).partial_success.rejected_data_points)
        return int(ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans)
    except Exception:
        return 0


def wait_of(retry_after: str | None, now_s: float) -> float | None:
    """Seconds that a Retry-After header asks for: a number or a date; what is neither is ``None``."""
    if not retry_after:
        return None
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        return max(email.utils.parsedate_to_datetime(retry_after).timestamp() - now_s, 0.0)
    except (TypeError, ValueError, OverflowError):
        return None
