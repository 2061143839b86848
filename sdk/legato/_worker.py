"""The worker thread: parsing, packing, spans and snapshots, outside the application's threads.

The application only appends to a recorder. The worker turns ended streams into spans immediately and takes snapshots of long-running
ones. Its queue is bounded: if it is full, the calling thread finishes its stream itself, which is counted as ``inline``. The thread does
not keep the process alive: before the process ends (`_exits`), open streams are ended as ``abandoned`` and everything is flushed.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import trace

from legato._application import flush_application
from legato._clock import now_ns
from legato._errors import faults, guard, warn_once
from legato._exits import PATIENCE_S, after_fork, before_end, renew
from legato._pace import Background, Starter, breathe, check, hurry, in_background, waits_since
from legato._recorder import End, StreamRecorder
from legato._replies import replies
from legato._route import Route, fate_of_unrecorded, own
from legato._silence import Silence, end_report, may_report
from legato._spans import PARTS, attributes_of, tracer
from legato._tally import tally
from legato._unparsed import heavy_pages, is_short, note_folded

__all__ = ["Worker", "flush", "stats", "worker"]

QUEUE_MAX = 4096
# Number of unparsed reads of a running stream at which they are parsed. This bounds the memory used by raw bytes.
DIGEST_AT = 512
_TICK_S, _IDLE_S = 0.25, 1.0
_TICK_NS = int(_TICK_S * 1e9)
# An application may leave its loop over a stream and start another over the same stream. After this time without one it is a cancel.
LEFT_NS = 1_000_000_000
SNAPSHOT_FACTOR = 3


@dataclass(slots=True)
class _Live:
    """A running stream: when its next snapshot is due (monotonic ns), and its silence as far as it was reported."""

    key: int
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
        # A collection of garbage may end a stream within any call, also within this queue's `get`: `put` of another queue would wait for
        # the lock that its own thread holds.
        self._queue: queue.SimpleQueue[tuple[StreamRecorder, int]] = queue.SimpleQueue()
        self._live: dict[int, _Live] = {}
        self._over: list[weakref.ref[StreamRecorder]] = []
        self._counts = {"started": 0, "ended": 0, "snapshots": 0, "silences": 0, "inline": 0}
        self._thread: Background | None = None
        self._starter = Starter()
        # Not the condition itself, of which a handler of a signal that raises may leave the lock held.
        self._counting = threading.RLock()
        self._idle = threading.Condition(self._counting)
        self._busy = 0
        self._process = os.getpid()

    def watch(self, recorder: StreamRecorder) -> None:
        """Track a stream that has begun, and start the thread if it does not run."""
        with self._counting:
            self._counts["started"] += 1
        key = id(recorder)
        self._live[key] = _Live(key, weakref.ref(recorder), recorder.start_ns + self._interval_ns)
        if not self._runs():
            self._starter.start(self._runs, self._start)

    def finish(self, recorder: StreamRecorder) -> None:
        """Queue an ended stream. If the queue is full, the calling thread builds the span itself; it never waits."""
        if os.getpid() != self._process:
            # A forked child that has not reset this yet. The locks may be held for ever, and garbage is collected at any moment.
            return
        ended, is_full = (recorder, now_ns()), self._queue.qsize() >= QUEUE_MAX
        try:
            with self._counting:
                if recorder.is_queued:
                    return
                # No call between these: a signal's handler that raised there would leave a stream for which each flush waits, or queued
                # twice. One that raises before them leaves it among those that live (`_unended`).
                self._busy += 1
                recorder.is_queued = True
                if not is_full:
                    self._queue.put(ended)
                    return
                self._counts["inline"] += 1
        finally:
            if recorder.is_queued:
                self._live.pop(id(recorder), None)
        self._complete(recorder)

    def _unended(self, live: _Live) -> StreamRecorder | None:
        """Return the stream if it runs. Queue it if it has ended and the handler of a signal that raised prevented that."""
        recorder = live.reference()
        if recorder is not None:
            if not recorder.ended:
                return recorder
            recorder.end()
        # Another stream may have its id by now.
        if self._live.get(live.key) is live:
            self._live.pop(live.key, None)
        return None

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until every stream that has ended is a span. Return False on time-out."""
        for live in self._running():
            self._unended(live)
        if not self._runs() and not self._starter.is_starting:
            # No stream has begun; or no thread can be started, as at the end of the process, and nothing else would make the spans.
            self._complete_ended(0.0, int(timeout_s * 1e9))
            return self._busy <= 0
        with hurry(), self._counting:
            return self._idle.wait_for(lambda: self._busy <= 0, timeout_s)

    def stats(self) -> Mapping[str, int]:
        """Return the counters, which ``legato.stats`` documents."""
        return {
            **self._counts,
            "live": len(self._live),
            "queued": self._busy,
            **tally.counts(),
            "refused": replies.refused,
            "faults": sum(list(faults.values())),
        }

    def _running(self) -> list[_Live]:
        """Return the streams that run now. Streams begin and end meanwhile in any thread.

        Not the items: making pairs may collect garbage, which may end a stream within the copying, which then fails.
        """
        while True:
            try:
                return list(self._live.values())
            except RuntimeError:
                continue

    def in_flight(self) -> Mapping[tuple[str, str], int]:
        """Return the number of running streams by vantage and model."""
        running = (live.reference() for live in self._running())
        known = (recorder for recorder in running if recorder is not None and may_report(recorder))
        return Counter((recorder.origin.vantage, recorder.origin.model) for recorder in known)

    def close(self, timeout_s: float = PATIENCE_S) -> None:
        """End open streams as abandoned and export everything, within this time. Called before the process ends."""
        for live in self._running():
            if (recorder := live.reference()) is not None:
                recorder.end("client_cancel" if recorder.left_ns else "abandoned", at_ns=recorder.left_ns or None)
        deadline = time.monotonic() + timeout_s
        self.flush(timeout_s)
        mine = own()
        if mine is not None:
            mine.close(max(0.0, deadline - time.monotonic()))
        flush_application(deadline)
        if (waiting := tally.counts()["waiting"] + self._busy) > 0:
            warn_once("ended", "streams are lost at the end of the process: %d. They could not be sent in time.", waiting)

    def _runs(self) -> bool:
        return self._thread is not None and not self._thread.is_over

    def _start(self) -> None:
        before_end(self.close)
        self._thread = in_background("legato-worker", self._run)

    def _run(self) -> None:
        due_ns = now_ns()
        while True:
            self._complete_ended(_TICK_S if self._live or self._over else _IDLE_S, _TICK_NS)
            if (self._live or self._over) and now_ns() >= due_ns:
                with guard("snapshot"):
                    self.tick()
                due_ns = now_ns() + _TICK_NS

    def _complete_ended(self, wait_s: float, for_ns: int = 0) -> None:
        """Complete streams that have ended, one at least, and more for so long. Without any, wait for the first one for ``wait_s``."""
        until_ns = now_ns() + for_ns
        while True:
            try:
                recorder, ended_ns = self._queue.get(timeout=wait_s) if wait_s else self._queue.get_nowait()
            except queue.Empty:
                return
            finally:
                check()
            waits_since(ended_ns)
            self._complete(recorder)
            wait_s = 0.0
            if now_ns() >= until_ns:
                return

    def tick(self) -> None:
        """Take the snapshots that are due, report silent streams, cancel streams that were left, and digest many unparsed reads."""
        now, began_ns, heavy = self._clock(), now_ns(), heavy_pages()
        self._forget()
        for live in self._running():
            if not self._queue.empty():
                self._complete_ended(0.0)
            waits_since(0 if is_short() else began_ns)
            recorder = self._unended(live)
            if recorder is None:
                continue
            if self._ends(recorder, now):
                self._over.append(live.reference)
                continue
            if self._interval_ns and recorder.span.is_recording() and may_report(recorder):
                self._report(recorder, live, now)
            if recorder.undigested >= DIGEST_AT or recorder.unparsed.pages >= heavy:
                recorder.parse()
            breathe()

    def _ends(self, recorder: StreamRecorder, now: int) -> bool:
        """End a stream that was left, that is over, or that is no stream of a model; return whether it was ended."""
        if recorder.left_ns and now - recorder.left_ns >= LEFT_NS:
            recorder.end("client_cancel", at_ns=recorder.left_ns)
        elif recorder.is_no_response:
            recorder.discard()
        elif recorder.is_over(now):
            recorder.end()
        return recorder.ended

    def _forget(self) -> None:
        """Forget what is still recorded of streams that the worker ended: their readers may go on for days."""
        self._over = [each for each in self._over if each() is not None]
        for each in self._over:
            if (recorder := each()) is not None:
                recorder.forget()

    def _report(self, recorder: StreamRecorder, live: _Live, now: int) -> None:
        """Take the snapshot if it is due, and report the silence if that is due."""
        if now >= live.due_ns and not recorder.awaits_headers:
            age = now - recorder.start_ns
            following = self._interval_ns
            while following <= age:
                following *= SNAPSHOT_FACTOR
            live.due_ns = recorder.start_ns + following
            self._snapshot(recorder, now, following)
        self._counts["silences"] += live.silence.tick(recorder, now)

    def _snapshot(self, recorder: StreamRecorder, now: int, next_due_ns: int) -> None:
        columns, origin = recorder.digest(), recorder.origin
        breathe()
        recorder.rev += 1
        attributes: dict[str, Any] = attributes_of(recorder, columns, None, now)
        breathe()
        attributes["legato.stream.rev"] = recorder.rev
        attributes["legato.stream.span_id"] = f"{recorder.span_id:016x}"
        attributes["legato.stream.next_due"] = next_due_ns / 1e9
        context, start = trace.set_span_in_context(recorder.span), origin.wall_ns(recorder.start_ns)
        span = tracer(origin.anchor_ns).start_span(PARTS[0], context=context, attributes=attributes, start_time=start)
        span.end(end_time=origin.wall_ns(now))
        self._counts["snapshots"] += 1

    def _complete(self, recorder: StreamRecorder) -> None:
        fate, process = "lost", os.getpid()
        try:
            with guard("end of a stream"):
                try:
                    fate = self._end_span(recorder)
                finally:
                    recorder.is_taken = True
                    recorder.forget()
        finally:
            # Not in a copy of this thread, from which `Copied` comes: its process has counters of its parent no longer.
            if os.getpid() == process:
                self._count(fate)

    def _count(self, fate: str) -> None:
        if fate:
            tally.add(fate)
        with self._counting:
            self._counts["ended"] += 1
            self._busy -= 1
            self._idle.notify_all()

    def _end_span(self, recorder: StreamRecorder) -> str:
        """End the stream's span. Return the stream's fate (`_tally`); empty if the sender counts it."""
        span = recorder.span
        if not span.is_recording():
            return "ignored" if recorder.is_discarded else fate_of_unrecorded(recorder.route)
        columns = recorder.digest()
        end = recorder.final_end()
        if end is None and not recorder.rev:
            self._counts["silences"] += end_report(recorder)
            return "ignored"
        if recorder.unparsed.folded or recorder.unparsed.lost:
            note_folded()
        # A snapshot without an end would be an abandoned stream.
        end = end or End(now_ns(), "client_cancel")
        breathe()
        attributes = attributes_of(recorder, columns, end, end.time_ns)
        breathe()
        if recorder.rev:
            attributes["legato.stream.rev"] = recorder.rev + 1
        if "gen_ai.request.model" in attributes and not recorder.origin.model:
            span.update_name(f"chat {attributes['gen_ai.request.model']}")
        span.set_attributes(attributes)
        if end.outcome in ("upstream_error", "timeout"):
            span.set_status(trace.StatusCode.ERROR)
        span.end(end_time=recorder.origin.wall_ns(end.time_ns))
        if recorder.route is Route.OWN:
            return ""
        # A span that is recorded and not sampled is exported by no processor of OpenTelemetry.
        return "handed_over" if span.get_span_context().trace_flags.sampled else fate_of_unrecorded(recorder.route)

    def after_fork(self) -> None:
        """Reset a forked child's worker. The parent sends the parent's streams; the child's thread starts with its own first stream."""
        for live in self._running():
            if (recorder := live.reference()) is not None:
                recorder.disown()
        self.__init__(self._interval_ns // 1_000_000, self._clock)  # type: ignore[misc]


_worker: Worker | None = None
# Re-entrant, because the handler of a signal may flush while the thread that it interrupts makes the worker.
_making = threading.RLock()


def worker() -> Worker:
    """Return the process's worker, creating it on first use from the environment's settings.

    To be called before anything else of a stream, because before the first it makes stale locks again (`renew`).
    """
    global _worker
    if _worker is None:
        with _making:
            if _worker is None:
                from legato._state import recording_settings

                made = Worker(recording_settings().snapshot_interval_ms)
                _worker = _worker or made
    if _worker._thread is None:
        renew()
    return _worker


def _forked() -> None:
    global _making
    _making = threading.RLock()
    faults.clear()
    if _worker is not None:
        _worker.after_fork()


after_fork(_forked)


def flush(timeout_s: float = 5.0) -> bool:
    """Export every stream that has ended. Without ``configure()``: pass it to the application's provider, and flush that.

    Return False on time-out, and if since the previous call a stream was lost, a span was rejected, or an export failed, as with a wrong
    token.

    A process that is ended by a signal runs no exit handlers: call this in its shutdown hook. `StreamMiddleware` does so itself.
    """
    deadline = time.monotonic() + timeout_s
    is_done = worker().flush(timeout_s)
    mine = own()
    if mine is not None:
        is_done = mine.flush(deadline - time.monotonic()) and is_done
    is_done = flush_application(deadline) and is_done
    return not tally.has_new_losses() and is_done


def stats() -> Mapping[str, int]:
    """Return counters of this process; a forked child starts with zeros.

    ``started`` = ``live`` + ``queued`` + ``ended``: streams that began; that run; that wait for Legato's worker; that it has finished.

    ``ended`` is the sum of seven fates. ``exported``: the endpoint of ``configure()`` accepted the stream. ``failed``: its export was given
    up after the exporter's retries. ``waiting``: it waits for its export. ``handed_over``: without ``configure()``, its span was given to
    the application's tracer provider, which alone knows what becomes of it. ``unsampled``: it was not recorded, because of the sampler of
    the application's provider, OTEL_SDK_DISABLED or LEGATO_DISABLED. ``ignored``: it was no response of a model, or another
    instrumentation records it. ``lost``: there was no provider, or the queue before the export was full, or Legato failed. Both rules
    hold exactly while no stream begins or ends.

    ``snapshots``: snapshots sent. ``silences``: reports about silent streams. ``inline``: streams finished by their caller because the
    worker's queue was full. ``folded``: streams of which some reads are recorded only as times and sizes, because they arrived faster than
    they could be parsed. ``rejected``: spans that the endpoint rejected from exports that it accepted. ``refused``: exports that the
    endpoint refused for good, for example because of a wrong token. ``faults``: suppressed exceptions of the SDK itself, wrong
    arguments and invalid settings.
    """
    return worker().stats()
