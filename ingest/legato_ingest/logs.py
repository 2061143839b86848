"""The log of `legato serve`: a thread writes it to standard error, so no request and no worker waits for the reader of the log.

A pipe that is not read, or a terminal that is held, blocks a write for ever, and the event loop would stand still with it. Records that do
not fit into the bounded queue, and repetitions of the same message, are left out and counted. Each record begins one line, whatever text
from outside it holds. The module sets no level.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from legato_ingest.visible import visible, visible_lines

__all__ = ["written_in_background"]

_FORMAT = "%(asctime)s %(levelname)s %(message)s"
_QUEUED_MAX = 1_000
# Of one message, with whatever arguments, so many records are written within a stretch of time.
_SAME_MAX, _SAME_S = 10, 10.0
# Texts of messages that are followed; a text is a literal of the code, so there are few.
_TEXTS_MAX = 1_000
# How long the end of the process waits for a reader of the log.
_CLOSE_S = 2.0


@contextlib.contextmanager
def written_in_background(left_out: Callable[[str], None], out: TextIO | None = None) -> Iterator[None]:
    """Write the records of all loggers to ``out`` (default: standard error) in a thread.

    ``left_out`` is called with the reason for each record that is not written: ``repeated`` or ``queue_full``.
    """
    waiting: queue.Queue[logging.LogRecord | None] = queue.Queue(_QUEUED_MAX)
    writer = logging.StreamHandler(out or sys.stderr)
    writer.setFormatter(logging.Formatter(_FORMAT))
    abandoned = threading.Event()
    thread = threading.Thread(target=_write, args=(waiting, writer, abandoned), name="legato-log-lines", daemon=True)
    thread.start()
    handler = _Enqueue(waiting, left_out)
    handler.addFilter(_Repetitions(left_out))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        try:
            waiting.put(None, timeout=_CLOSE_S)
            thread.join(_CLOSE_S)
        except queue.Full:
            abandoned.set()


def _write(waiting: queue.Queue[logging.LogRecord | None], writer: logging.Handler, abandoned: threading.Event) -> None:
    while (record := waiting.get()) is not None and not abandoned.is_set():
        writer.handle(record)


class _Enqueue(logging.handlers.QueueHandler):
    """Queues records with their texts complete, and never waits."""

    def __init__(self, waiting: queue.Queue[logging.LogRecord | None], left_out: Callable[[str], None]) -> None:
        super().__init__(waiting)
        self._left_out = left_out
        self.setFormatter(_Lines())

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue a record, or leave it out if the queue is full."""
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self._left_out("queue_full")


class _Lines(logging.Formatter):
    """Formats a message as one line. The lines of a traceback are indented, so that no text in it looks like a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message, and the traceback if the record has one."""
        details = [self.formatException(record.exc_info)] if record.exc_info else []
        details += [self.formatStack(record.stack_info)] if record.stack_info else []
        lines = [f"  {line}" for each in details for line in visible_lines(each).split("\n")]
        return "\n".join([visible(record.getMessage()), *lines])


class _Repetitions(logging.Filter):
    """Leaves out the records of a message that is repeated often; the next record that is written says how many."""

    def __init__(self, left_out: Callable[[str], None]) -> None:
        super().__init__()
        self._left_out = left_out
        self._lock = threading.Lock()
        # By text: the end of its stretch of time (monotonic, s), the records in it, and those left out since the last that was written.
        self._seen: dict[str, tuple[float, int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is to be written."""
        text, now_s = str(record.msg), time.monotonic()
        with self._lock:
            until_s, count, missing = self._seen.get(text, (0.0, 0, 0))
            if now_s >= until_s:
                until_s, count = now_s + _SAME_S, 0
            is_written = count < _SAME_MAX
            if text not in self._seen and len(self._seen) >= _TEXTS_MAX:
                self._seen.clear()
            self._seen[text] = until_s, count + 1, 0 if is_written else missing + 1
        if not is_written:
            self._left_out("repeated")
        elif missing:
            record.msg = f"{text} (and {missing} more like this were left out)"
        return is_written
