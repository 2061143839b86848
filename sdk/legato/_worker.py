"""The worker thread: parsing, packing, spans and snapshots, outside the application's threads.

The application only appends to a recorder. The worker turns ended streams into spans immediately and takes snapshots of long-running
ones. Its queue is bounded: if it is full, the calling thread finishes its stream itself, which is counted as ``inline``. The thread does
not keep the process alive: at exit, open streams are ended as ``abandoned`` and everything is flushed.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import trace

from legato._clock import now_ns, wall_ns
from legato._errors import faults, guard
from legato._recorder import StreamRecorder
from legato._replies import replies
from legato._silence import Silence
from legato._spans import attributes_of, tracer

__all__ = ["Worker", "flush", "stats", "worker"]

QUEUE_MAX = 4096
# Number of unparsed reads of a running stream at which they are parsed. This bounds the memory used by raw bytes.
DIGEST_AT = 512
_TICK_S = 0.25
# An application may leave its loop over a stream and start another over the same stream. After this time without one it is a cancel.
LEFT_NS = 1_000_000_000
SNAPSHOT_FACTOR = 3


@dataclass(slots=True)
class _Live:
    """A running stream: when its next snapshot is due (monotonic ns), and its silence as far as it was reported."""

    reference: weakref.ref[StreamRecorder]
    due_ns: int
    silence: Silence = field(default_factory=Silence)


class Worker:
    """Finishes streams, takes snapshots and reports silent streams; one per process.

    ``snapshot_interval_ms`` is the age of a stream at its first snapshot; 0 disables snapshots and reports. ``clock`` returns monotonic ns.
    """

    def __init__(self, snapshot_interval_ms: int, clock: Callable[[], int] = now_ns) -> None:
        self._interval_ns = snapshot_interval_ms * 1_000_000
        self._clock = clock
        self._queue: queue.Queue[StreamRecorder | None] = queue.Queue(QUEUE_MAX)
        self._live: dict[int, _Live] = {}
        self._counts = {"started": 0, "ended": 0, "snapshots": 0, "silences": 0, "inline": 0}
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._idle = threading.Condition()
        self._busy = 0

    def watch(self, recorder: StreamRecorder) -> None:
        """Track a stream that has begun, and start the thread if it does not run."""
        self._counts["started"] += 1
        self._live[id(recorder)] = _Live(weakref.ref(recorder), recorder.start_ns + self._interval_ns)
        if self._thread is None or not self._thread.is_alive():
            self._start()

    def finish(self, recorder: StreamRecorder) -> None:
        """Queue an ended stream. If the queue is full, the calling thread builds the span itself; it never waits."""
        self._live.pop(id(recorder), None)
        with self._idle:
            self._busy += 1
        try:
            self._queue.put_nowait(recorder)
        except queue.Full:
            self._counts["inline"] += 1
            self._complete(recorder)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until every stream that has ended is a span. Return False on time-out."""
        if self._thread is None:
            return True
        with self._idle:
            return self._idle.wait_for(lambda: self._busy <= 0, timeout_s)

    def stats(self) -> Mapping[str, int]:
        """Return the counters, which ``legato.stats`` documents."""
        return {
            **self._counts,
            "live": len(self._live),
            "queued": self._queue.qsize(),
            "refused": replies.refused,
            "faults": sum(faults.values()),
        }

    def in_flight(self) -> Mapping[tuple[str, str], int]:
        """Return the number of running streams by vantage and model."""
        running = (live.reference() for live in list(self._live.values()))
        return Counter((recorder.origin.vantage, recorder.origin.model) for recorder in running if recorder is not None)

    def close(self) -> None:
        """End open streams as abandoned and flush. Called when the process exits."""
        for live in list(self._live.values()):
            recorder = live.reference()
            if recorder is not None and recorder.left_ns:
                recorder.end("client_cancel", at_ns=recorder.left_ns)
            elif recorder is not None:
                recorder.end("abandoned")
        self.flush()

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None and self._thread.is_alive():
                return
            # Exit handlers run last in, first out. This one is registered with the first stream, so it runs before the provider's shutdown.
            atexit.register(self.close)
            self._thread = threading.Thread(target=self._run, name="legato-worker", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        ticked = now_ns()
        while True:
            try:
                recorder = self._queue.get(timeout=_TICK_S if self._live else 5.0)
            except queue.Empty:
                recorder = None
            if recorder is not None:
                self._complete(recorder)
            # The second condition is for streams that end without a pause: the queue is then never empty, but snapshots are still due.
            if self._live and (recorder is None or now_ns() - ticked >= _TICK_S * 1e9):
                ticked = now_ns()
                with guard("snapshot"):
                    self.tick()

    def tick(self) -> None:
        """Take the snapshots that are due, report silent streams, cancel streams that were left, and digest many unparsed reads."""
        now = self._clock()
        for key, live in list(self._live.items()):
            recorder = live.reference()
            if recorder is None or recorder.ended:
                self._live.pop(key, None)
                continue
            if recorder.left_ns and now - recorder.left_ns >= LEFT_NS:
                recorder.end("client_cancel", at_ns=recorder.left_ns)
                continue
            if recorder.is_over(now):
                recorder.end()
                continue
            if self._interval_ns and not recorder.is_unsure:
                self._report(recorder, live, now)
            if recorder.undigested >= DIGEST_AT:
                recorder.parse()

    def _report(self, recorder: StreamRecorder, live: _Live, now: int) -> None:
        """Take the snapshot if it is due, and report the silence if that is due."""
        if now >= live.due_ns:
            age = now - recorder.start_ns
            following = self._interval_ns
            while following <= age:
                following *= SNAPSHOT_FACTOR
            live.due_ns = recorder.start_ns + following
            self._snapshot(recorder, now, following)
        self._counts["silences"] += live.silence.tick(recorder, now)

    def _snapshot(self, recorder: StreamRecorder, now: int, next_due_ns: int) -> None:
        columns = recorder.digest()
        recorder.rev += 1
        attributes: dict[str, Any] = attributes_of(recorder, columns, None, now)
        attributes["legato.stream.rev"] = recorder.rev
        attributes["legato.stream.span_id"] = f"{recorder.span_id:016x}"
        attributes["legato.stream.next_due"] = next_due_ns / 1e9
        context = trace.set_span_in_context(recorder.span)
        span = tracer().start_span("legato.stream.snapshot", context=context, attributes=attributes, start_time=wall_ns(recorder.start_ns))
        span.end(end_time=wall_ns(now))
        self._counts["snapshots"] += 1

    def _complete(self, recorder: StreamRecorder) -> None:
        try:
            with guard("end of a stream"):
                self._end_span(recorder)
        finally:
            self._counts["ended"] += 1
            with self._idle:
                self._busy -= 1
                self._idle.notify_all()

    def _end_span(self, recorder: StreamRecorder) -> None:
        span = recorder.span
        columns = recorder.digest()
        end = recorder.final_end()
        if end is None:
            return
        if span.is_recording():
            attributes = attributes_of(recorder, columns, end, end.time_ns)
            if recorder.rev:
                attributes["legato.stream.rev"] = recorder.rev + 1
            if "gen_ai.request.model" in attributes and not recorder.origin.model:
                span.update_name(f"chat {attributes['gen_ai.request.model']}")
            span.set_attributes(attributes)
            if end.outcome in ("upstream_error", "timeout"):
                span.set_status(trace.StatusCode.ERROR)
        span.end(end_time=wall_ns(end.time_ns))

    def after_fork(self) -> None:
        """Reset a forked child's worker. The parent sends the parent's streams; the child's thread starts with its own first stream."""
        self.__init__(self._interval_ns // 1_000_000, self._clock)  # type: ignore[misc]


_worker: Worker | None = None
_making = threading.Lock()


def worker() -> Worker:
    """Return the process's worker, creating it on first use from the environment's settings."""
    global _worker
    if _worker is None:
        with _making:
            if _worker is None:
                from legato._state import settings

                _worker = Worker(settings().snapshot_interval_ms)
                if hasattr(os, "register_at_fork"):
                    os.register_at_fork(after_in_child=_worker.after_fork)
    return _worker


def flush(timeout_s: float = 5.0) -> bool:
    """Wait until every ended stream is a span and the provider, if it supports ``force_flush``, has exported it.

    Return False on time-out, and if the endpoint of ``configure()`` refuses the exports, for example because of a wrong token.

    A process that is ended by a signal runs no exit handlers: call this in its shutdown hook. `StreamMiddleware` does so itself.
    """
    if not worker().flush(timeout_s):
        return False
    force = getattr(trace.get_tracer_provider(), "force_flush", None)
    done = bool(force(int(timeout_s * 1000))) if force is not None else True
    return done and not replies.is_refused


def stats() -> Mapping[str, int]:
    """Return counters of this process.

    ``started``, ``ended``, ``live``: streams that began, were finished, are running. ``snapshots``: snapshots sent. ``silences``: reports
    about silent streams. ``queued``: ended
    streams in the worker's queue. ``inline``: streams finished by their caller because the queue was full. ``refused``: exports
    that the endpoint refused for good, for example because of a wrong token. ``faults``: suppressed exceptions of the SDK itself, and wrong
    arguments.
    """
    return worker().stats()
