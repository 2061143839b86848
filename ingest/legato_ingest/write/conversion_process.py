"""Conversion of large bodies in processes apart, because the conversion in a thread of `legato serve` delays all acknowledgements.

A body of 40 MiB takes seconds of arithmetic in Python, which runs one thread of a process at a time. A process converts one body after
another; each batch is converted when it is asked for. A process that nothing asks for ends, and with it the memory that its last body
left. The number of processes is that of the bodies that are converted at the same time, which ``conversion`` limits.
"""

from __future__ import annotations

import contextlib
import gc
import pathlib
import pickle
import subprocess
import threading
import time
import traceback
from collections.abc import Iterator
from typing import IO

from legato_ingest.child_process import pipes, read, start, write
from legato_ingest.errors import BadRequest, ConversionEnded, StoreUnavailable
from legato_ingest.otlp.batch import Batch
from legato_ingest.write.body import Body
from legato_ingest.write.body_converter import BodyConverter, OnFault, Part

__all__ = ["ConversionProcesses"]

# A process ends when it has been idle for so long.
_IDLE_S = 20.0
# The kernel's choice when memory is short: this process before its parent.
_OOM_SCORE = "500"
# A process has so long for one batch of a body of so many bytes at most. Most take a second or two, the first of JSON ten times as long.
_ANSWER_S, _ANSWER_BYTES = 120.0, 64 * 2**20
# A body is given to so many processes before it is refused: the first may have ended for another reason.
_TRIALS = 2
# Asks for the next batch.
_NEXT = None

_Process = subprocess.Popen[bytes]


class ConversionProcesses:
    """The processes. ``rows`` may be called in several threads; each body has a process until its last batch."""

    def __init__(self, converter: BodyConverter) -> None:
        self._converter = converter
        # Processes with a body, and idle ones with the timer that ends them. The lock is reentrant: a generator may be closed within any
        # statement.
        self._busy: set[_Process] = set()
        self._idle: dict[_Process, threading.Timer] = {}
        self._lock = threading.RLock()
        self._is_closed = False

    def rows(self, body: Body, on_fault: OnFault) -> Iterator[Batch]:
        """Yield the rows of a body like ``BodyConverter.rows``, and raise what it raises.

        Raises ``ConversionEnded`` if the process ends within the body, and ``StoreUnavailable`` if none can be started or after ``close``.
        """
        process, part = self._begun(body)
        try:
            while True:
                for fault in part.faults:
                    on_fault(fault)
                if part.error is not None:
                    try:
                        raise part.error
                    finally:
                        # Otherwise the error, its traceback, this frame and the body in it would be a cycle.
                        del part
                if part.batch is None:
                    return
                yield part.batch
                part = self._exchange(process, _NEXT)
        finally:
            self._give_back(process)

    def close(self) -> None:
        """End all processes. A body that is being converted fails with ``StoreUnavailable``."""
        with self._lock:
            self._is_closed = True
            for process in list(self._idle):
                self._end_if_idle(process)
            for process in list(self._busy):
                # The thread that waits for the answer sees the end and closes the pipes.
                process.kill()

    def _begun(self, body: Body) -> tuple[_Process, Part]:
        """Return a process that converts the body, and the first part."""
        trials = 0
        while True:
            process, is_new = self._taken()
            # An idle process may have been killed a moment ago.
            trials += is_new
            try:
                return process, self._exchange(process, (self._converter, body))
            except BaseException as error:
                self._give_back(process)
                if trials == _TRIALS or not isinstance(error, ConversionEnded) or error.is_late:
                    raise

    def _exchange(self, process: _Process, message: object) -> Part:
        """Send a message and return the answer. Raises ``ConversionEnded`` if the process ends, or takes too long."""
        try:
            return _exchange(process, message, _ANSWER_S * max(1.0, self._converter.bytes_max / _ANSWER_BYTES))
        except ConversionEnded:
            if self._is_closed:
                raise StoreUnavailable("the server is stopping") from None
            raise

    def _taken(self) -> tuple[_Process, bool]:
        """Return an idle process, or a new one, and whether it is new."""
        with self._lock:
            while self._idle and not self._is_closed:
                # The one that was used last, so that the others end.
                process, timer = self._idle.popitem()
                timer.cancel()
                if process.poll() is None:
                    self._busy.add(process)
                    return process, False
                _end(process)
            if self._is_closed:
                raise StoreUnavailable("the server is stopping")
            try:
                process = start(__name__)
            except OSError as error:
                raise StoreUnavailable(f"the process that converts large bodies cannot be started: {error}") from error
            self._busy.add(process)
            return process, True

    def _give_back(self, process: _Process) -> None:
        timer = threading.Timer(_IDLE_S, self._end_if_idle, [process])
        timer.daemon = True
        with self._lock:
            self._busy.discard(process)
            if self._is_closed or process.poll() is not None:
                _end(process)
                return
            self._idle[process] = timer
            try:
                _start(timer)
            except StoreUnavailable:
                self._end_if_idle(process)

    def _end_if_idle(self, process: _Process) -> None:
        with self._lock:
            timer = self._idle.pop(process, None)
        if timer is not None:
            timer.cancel()
            _end(process)


def _exchange(process: _Process, message: object, answer_s: float) -> Part:
    """Send a message and return the answer. If that fails, the process is ended.

    Raises ``ConversionEnded`` if the process ends, or has no answer after so long, and ``StoreUnavailable`` if there are too many threads.
    """
    assert process.stdin is not None and process.stdout is not None
    late, began_s = threading.Timer(answer_s, process.kill), time.monotonic()
    late.daemon = True
    try:
        _start(late)
        write(process.stdin, message)
        part = read(process.stdout)
        assert isinstance(part, Part)
    except (EOFError, OSError) as error:
        is_late, status = time.monotonic() - began_s >= answer_s, _end(process)
        raise ConversionEnded(f"the process that converted a large body ended: exit status {status}, {error}", is_late=is_late) from None
    except BaseException:
        # Otherwise what was not read would be taken for the next answer.
        _end(process)
        raise
    finally:
        late.cancel()
    return part


def _start(thread: threading.Thread) -> None:
    try:
        thread.start()
    except RuntimeError as error:
        raise StoreUnavailable(f"a thread cannot be started: {error}") from error


def _end(process: _Process) -> int:
    """End a process and return its exit status, negative for a signal."""
    process.kill()
    for pipe in (process.stdin, process.stdout):
        # What was written last cannot be sent any more.
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()
    return process.wait()


class _Faults:
    """The faults of items since the last answer. Those of one type are the same object: a body may have a million of them."""

    def __init__(self) -> None:
        self._faults: list[Exception] = []
        self._of_type: dict[type[Exception], Exception] = {}

    def add(self, error: Exception) -> None:
        if type(error) not in self._of_type:
            self._of_type[type(error)] = _portable(error)
        self._faults.append(self._of_type[type(error)])

    def take(self) -> tuple[Exception, ...]:
        taken = tuple(self._faults)
        self._faults.clear()
        self._of_type.clear()
        return taken


def _portable(error: Exception) -> Exception:
    """Return an error that can be pickled. If it is no refusal, it names the lines where it was raised: a pickled error has no frames."""
    if isinstance(error, BadRequest):
        # Its subclasses have other arguments.
        return BadRequest(str(error), error.status)
    lines = "".join(traceback.format_exception(error))
    error.add_note(lines)
    try:
        return pickle.loads(pickle.dumps(error))  # type: ignore[no-any-return]
    except Exception:
        return RuntimeError(lines)


def _part(rows: Iterator[Batch], faults: _Faults) -> Part:
    """Convert the next batch."""
    batch, failed = None, None
    try:
        batch = next(rows, None)
    except Exception as error:
        failed = _portable(error)
    return Part(batch, faults.take(), failed)


def _answer(messages: IO[bytes], answers: IO[bytes]) -> None:
    """Convert what the parent sends, until it closes the pipe."""
    rows, faults = iter(tuple[Batch]()), _Faults()
    while True:
        try:
            message = read(messages)
        except EOFError:
            return
        if message is not _NEXT:
            # A body from which the parent wanted no further batch is dropped here.
            converter, body = message
            rows = converter.rows(body, faults.add)
            faults.take()
        del message
        write(answers, _part(rows, faults))


def _main() -> None:
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="ascii")
    # As in the parent: objects of the start-up live as long as the process.
    gc.freeze()
    with contextlib.suppress(BrokenPipeError):
        _answer(*pipes())


if __name__ == "__main__":
    _main()
