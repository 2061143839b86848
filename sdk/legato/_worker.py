"""The one thread that does everything slow: parsing, packing, spans, snapshots.

One idea: the application appends and goes on; the worker turns ended streams into spans at once, and takes snapshots of those that run
long. Its queue is bounded: when it is full the caller finishes its own stream, and that is counted. It never keeps the process alive:
at exit, streams that are still open are ended as abandoned and everything is flushed.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry import trace

from legato._clock import now_ns, wall_ns
from legato._errors import faults, guard
from legato._recorder import StreamRecorder
from legato._spans import attributes_of, tracer

__all__ = ["Worker", "flush", "stats", "worker"]

QUEUE_MAX = 4096
# Reads that a running stream may pile up before they are parsed: bounds the memory that raw bytes take.
DIGEST_AT = 512
_TICK_S = 0.25
# A loop that was left may be followed by another over the same stream; after this time it was a cancel.
LEFT_NS = 1_000_000_000
SNAPSHOT_FACTOR = 3


class Worker:
    """Finishes streams. ``snapshot_interval_ms`` is the age of a stream at its first snapshot; 0: none. One a process."""

    def __init__(self, snapshot_interval_ms: int, clock: Callable[[], int] = now_ns) -> None:
        self._interval_ns = snapshot_interval_ms * 1_000_000
        self._clock = clock
        self._queue: queue.Queue[StreamRecorder | None] = queue.Queue(QUEUE_MAX)
        self._live: dict[int, tuple[weakref.ref[StreamRecorder], int]] = {}
        self._counts = {"started": 0, "ended": 0, "snapshots": 0, "inline": 0}
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._idle = threading.Condition()
        self._busy = 0

    def watch(self, recorder: StreamRecorder) -> None:
        """A stream has begun."""
        self._counts["started"] += 1
        self._live[id(recorder)] = (weakref.ref(recorder), recorder.start_ns + self._interval_ns)
        if self._thread is None or not self._thread.is_alive():
            self._start()

    def finish(self, recorder: StreamRecorder) -> None:
        """A stream has ended: its span goes out soon. Never blocks."""
        self._live.pop(id(recorder), None)
        with self._idle:
            self._busy += 1
        try:
            self._queue.put_nowait(recorder)
        except queue.Full:
            self._counts["inline"] += 1
            self._complete(recorder)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all streams ended so far are spans. False when the time was not enough."""
        if self._thread is None:
            return True
        with self._idle:
            return self._idle.wait_for(lambda: self._busy <= 0, timeout_s)

    def stats(self) -> Mapping[str, int]:
        """Streams started and ended, snapshots, streams finished by their caller as the queue was full, and faults of Legato's own."""
        return {**self._counts, "live": len(self._live), "queued": self._queue.qsize(), "faults": sum(faults.values())}

    def close(self) -> None:
        """End what is still open as abandoned and flush: the process is about to exit."""
        for reference, _ in list(self._live.values()):
            recorder = reference()
            if recorder is not None and recorder.left_ns:
                recorder.end("client_cancel", at_ns=recorder.left_ns)
            elif recorder is not None:
                recorder.end("abandoned")
        self.flush()

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None and self._thread.is_alive():
                return
            # Exit handlers run last in, first out: registered with the first stream, this one runs before the provider's shutdown.
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
            # Also when streams end without a pause: the queue is then never empty, and snapshots are due all the same.
            if self._live and (recorder is None or now_ns() - ticked >= _TICK_S * 1e9):
                ticked = now_ns()
                with guard("snapshot"):
                    self.tick()

    def tick(self) -> None:
        """Take the snapshots that are due, and digest what piles up."""
        now = self._clock()
        for key, (reference, due) in list(self._live.items()):
            recorder = reference()
            if recorder is None or recorder.ended:
                self._live.pop(key, None)
            elif recorder.left_ns and now - recorder.left_ns >= LEFT_NS:
                recorder.end("client_cancel", at_ns=recorder.left_ns)
            elif self._interval_ns and now >= due:
                age = now - recorder.start_ns
                following = self._interval_ns
                while following <= age:
                    following *= SNAPSHOT_FACTOR
                self._live[key] = (reference, recorder.start_ns + following)
                self._snapshot(recorder, now, following)
            elif recorder.waiting >= DIGEST_AT:
                recorder.digest()

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
        end = recorder.verdict()
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
        """In a child: the parent's streams are the parent's; start anew with the first stream of one's own."""
        self.__init__(self._interval_ns // 1_000_000, self._clock)  # type: ignore[misc]


_worker: Worker | None = None
_making = threading.Lock()


def worker() -> Worker:
    """The process's worker, made on first use with the settings of the environment."""
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
    """Wait until every stream that has ended is a span, and the provider (where it can) has exported it. False when time ran out.

    Processes that a signal ends run no exit handlers: call this in their shutdown hook. `StreamMiddleware` does so by itself.
    """
    if not worker().flush(timeout_s):
        return False
    force = getattr(trace.get_tracer_provider(), "force_flush", None)
    return bool(force(int(timeout_s * 1000))) if force is not None else True


def stats() -> Mapping[str, int]:
    """What Legato did in this process: streams ``started``, ``ended`` and ``live``, ``snapshots``, ``queued``, ``inline``, ``faults``."""
    return worker().stats()
