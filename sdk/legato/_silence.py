"""Silence of running streams: when to report that a stream has had no content for some time, and that it goes on.

A stream that flows costs nothing. The reports are what `legato live` and the alert on stalled streams read; the stream's own span has
every gap exactly. The module decides and sends; the worker calls it.
"""

from __future__ import annotations

from legato._clock import now_ns
from legato._recorder import StreamRecorder
from legato._spans import send_silence
from legato._timeline import Kind

__all__ = ["REPORT_AT_NS", "Silence", "end_report", "may_report"]

REPORT_AT_NS = (2_000_000_000, 8_000_000_000, 30_000_000_000)
"""Lengths of a silence at which it is reported; after the last, at three times the length, but every five minutes at least."""
_FACTOR, _EVERY_NS_MAX = 3, 300_000_000_000
# The end of a silence that was reported this often is reported, too. A shorter one is over when its next report is overdue.
_REPORTS_MIN = 2


def may_report(recorder: StreamRecorder) -> bool:
    """Whether a running stream may be reported: it was asked for or has had an event, and is not known to be no model's stream. May parse.

    Until then it may be a call of a tool or an idle stream of notifications, which are silent for as long as they like.
    """
    if recorder.is_unsure:
        return False
    if recorder.asked:
        return True
    recorder.asked = any(kind != Kind.HEARTBEAT for kind in recorder.digest().kinds)
    # The event may have shown that this is no response of a model.
    return recorder.asked and not recorder.is_unsure


class Silence:
    """The silence of one stream, as far as it was reported."""

    __slots__ = ("_due_ns", "_reports")

    def __init__(self) -> None:
        self._reports = 0
        self._due_ns = REPORT_AT_NS[0]

    def tick(self, recorder: StreamRecorder, now: int) -> bool:
        """Report the stream's silence if that is due, or its end. Return whether a report was sent."""
        since = recorder.silent_since(now, min(self._due_ns, REPORT_AT_NS[0]))
        sent = False
        if recorder.silent_ns is not None and since != recorder.silent_ns:
            sent = self._end(recorder, recorder.silent_ns)
        if since is not None and now - since >= self._due_ns:
            self._due_ns = _next_due_ns(now - since)
            send_silence(recorder, since, now, next_due_ns=since + self._due_ns)
            recorder.silent_ns, self._reports = since, self._reports + 1
            sent = True
        return sent

    def _end(self, recorder: StreamRecorder, since_ns: int) -> bool:
        """Forget the silence, and report its end if others rely on that."""
        after = recorder.content_after(since_ns) if self._reports >= _REPORTS_MIN else 0
        if after:
            send_silence(recorder, since_ns, after)
        recorder.silent_ns, self._reports, self._due_ns = None, 0, REPORT_AT_NS[0]
        return bool(after)


def end_report(recorder: StreamRecorder) -> bool:
    """Report the end of the silence of a stream that has no row, if one was reported. Return whether a report was sent."""
    since = recorder.silent_ns
    if since is not None:
        send_silence(recorder, since, now_ns())
    return since is not None


def _next_due_ns(silence_ns: int) -> int:
    for due in REPORT_AT_NS:
        if silence_ns < due:
            return due
    due = REPORT_AT_NS[-1]
    while due <= silence_ns:
        due += min((_FACTOR - 1) * due, _EVERY_NS_MAX)
    return due
