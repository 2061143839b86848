"""The queue of ended spans and the thread that exports it, for Legato's own provider.

OpenTelemetry's batch processor drops spans of a full queue, ignores the result of an export, and ignores the time-out of a flush. Here each
stream is counted (`_tally`), a flush returns whether the exports succeeded, and a forked child starts with an empty queue, a new thread
and a new exporter: its parent's spans are its parent's, and no socket is shared. Under gevent a child has copies of its parent's threads,
which do nothing there (`_pace.check`). Retries are the exporter's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from legato._clock import now_ns
from legato._errors import warn_once
from legato._exits import after_fork
from legato._pace import Background, Paced, Starter, check, hurry, in_background, waits_since
from legato._tally import tally
from legato._timeline import TIMELINE

__all__ = ["BATCH_MAX", "QUEUE_MAX", "Sender"]

_log = logging.getLogger("legato")
QUEUE_MAX = 4096
BATCH_MAX = 512
# Of timelines: a full one has some hundred KB, a usual one three bytes a chunk. A batch is encoded in one step, in which no other thread
# runs.
_QUEUE_BYTES_MAX, _BATCH_BYTES_MAX = 1 << 26, 1 << 19
# Streams that end together after a quiet time leave in one export.
_GATHER_S = 0.25
Export = Callable[[Sequence[Any]], bool]


class Sender:
    """Exports spans in batches, at most one per ``interval_s`` unless they are full. ``put`` and ``flush`` may be called from any thread.

    ``make_export`` returns a function that exports a batch and returns whether the endpoint accepted it. It is called once per process.
    """

    def __init__(self, make_export: Callable[[], Export], interval_s: float, queue_max: int = QUEUE_MAX) -> None:
        self._make_export, self._interval_s, self._queue_max = make_export, interval_s, queue_max
        self._reset()
        # Made at once, so that an invalid configuration is an error of `configure()`.
        self._export: Export | None = make_export()
        after_fork(self._reset)

    def _reset(self) -> None:
        # Re-entrant, so the handler of a signal may flush whatever it interrupts. Not the condition is entered, which is Python code: a
        # handler that raises there would leave the lock held for ever.
        self._lock = threading.RLock()
        self._changed, self._starter = threading.Condition(self._lock), Starter()
        self._queue: deque[tuple[Any, bool]] = deque()
        self._taken = self._done = self._urgent = self._oldest_ns = self._bytes = 0
        self._has_failed = False
        self._thread: Background | None = None
        self._export = None

    def start(self) -> None:
        """Start the thread, if it does not run. Called with each stream, because a process that ends can start no thread."""
        if not self._runs():
            self._starter.start(self._runs, self._start)

    def _runs(self) -> bool:
        return self._thread is not None and not self._thread.is_over

    def _start(self) -> None:
        self._thread = in_background("legato-sender", self._run)

    def put(self, span: Any, *, is_stream: bool) -> None:
        """Queue an ended span; it never waits. If the queue is full, the span is dropped and a stream is counted as lost."""
        size = _size_of(span)
        with self._lock:
            if len(self._queue) >= self._queue_max or self._bytes + size > _QUEUE_BYTES_MAX:
                self._drop(is_stream)
                return
            if not self._queue:
                self._oldest_ns = now_ns()
            self._queue.append((span, is_stream))
            self._bytes += size
            self._taken += 1
            if is_stream:
                tally.add("waiting")
            if len(self._queue) in (1, BATCH_MAX) or self._bytes >= _BATCH_BYTES_MAX:
                self._changed.notify_all()
        self.start()

    def flush(self, timeout_s: float) -> bool:
        """Export the spans that were put before this call. Return False on time-out and if an export failed since the previous call.

        Without a thread, which may not be startable at the end of the process, nothing is waited for.
        """
        is_alive = self._runs() or self._starter.is_starting
        with hurry(), self._lock:
            target = self._urgent = self._taken
            self._changed.notify_all()
            is_done = self._changed.wait_for(lambda: self._done >= target, max(0.0, timeout_s) if is_alive else 0.0)
            has_failed, self._has_failed = self._has_failed, False
        return is_done and not has_failed

    def _drop(self, is_stream: bool) -> None:
        self._has_failed = True
        if is_stream:
            tally.add("lost")
        warn_once(
            "queue",
            "more than %d ended streams, or %d MiB, wait for their export, and further ones are lost: the endpoint is too slow or does not "
            "answer. They are counted in legato.stats()['lost'].",
            self._queue_max,
            _QUEUE_BYTES_MAX >> 20,
        )

    def _run(self) -> None:
        export = self._export = self._export or self._make_export()
        due = time.monotonic() + self._interval_s
        while True:
            batch = self._next_batch(due)
            due = time.monotonic() + self._interval_s
            is_accepted = _is_exported(export, Paced(span for span, _ in batch))
            check()
            self._note(batch, is_accepted)

    def _next_batch(self, due: float) -> list[tuple[Any, bool]]:
        """Wait for a span, and for more of them until ``due`` (monotonic), a full batch or a flush: briefly after a quiet time."""
        with self._lock:
            self._changed.wait_for(lambda: bool(self._queue))
            wait_s = max(due - time.monotonic(), min(_GATHER_S, self._interval_s))
            self._changed.wait_for(self._is_urgent, wait_s)
            check()
            waits_since(max(self._oldest_ns, int(1e9 * due)))
            return self._take_batch()

    def _take_batch(self) -> list[tuple[Any, bool]]:
        batch: list[tuple[Any, bool]] = []
        size = 0
        while self._queue and len(batch) < BATCH_MAX and size < _BATCH_BYTES_MAX:
            batch.append(self._queue.popleft())
            size += _size_of(batch[-1][0])
        self._bytes -= size
        return batch

    def _is_urgent(self) -> bool:
        return self._urgent > self._done or len(self._queue) >= BATCH_MAX or self._bytes >= _BATCH_BYTES_MAX

    def _note(self, batch: Sequence[tuple[Any, bool]], is_accepted: bool) -> None:
        streams = sum(is_stream for _, is_stream in batch)
        tally.add("exported" if is_accepted else "failed", streams)
        tally.add("waiting", -streams)
        with self._lock:
            self._done += len(batch)
            self._has_failed = self._has_failed or not is_accepted
            self._changed.notify_all()
        if not is_accepted:
            warn_once(
                "failed",
                "an export failed, and its streams are lost: check the endpoint of legato.configure(). "
                "Further ones are counted in legato.stats()['failed'], not logged.",
            )


def _size_of(span: Any) -> int:
    """Return the bytes of a span's timeline, which is most of what it has; 0 if it has none."""
    timeline = (getattr(span, "attributes", None) or {}).get(TIMELINE)
    return len(timeline) if isinstance(timeline, (bytes, str)) else 0


def _is_exported(export: Export, spans: Sequence[Any]) -> bool:
    """Export these spans; return whether they were accepted. An exporter that raises has failed."""
    try:
        return export(spans)
    except Exception:
        # A log handler of the application may raise, too.
        with suppress(Exception):
            _log.debug("traceback of a failed export", exc_info=True)
        return False
