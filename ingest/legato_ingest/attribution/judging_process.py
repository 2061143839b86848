"""Judgement in a separate process: one interpreter for the requests of `legato serve`, another for the arithmetic of attribution.

Python runs one thread of a process at a time, so a sweep over some hundred streams would delay every acknowledgement. The process is
started when it is needed first, and again if it ends. It reads evidence from its standard input and writes rows to its standard output,
both pickled; it opens no store, and it ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import IO

from legato_ingest.attribution.judging import Judged, judged_rows
from legato_ingest.attribution.model.judge import Evidence, Thresholds
from legato_ingest.child_process import pipes, read, start, write
from legato_ingest.definitions import by_tenant
from legato_ingest.errors import StoreUnavailable

__all__ = ["JudgingProcess"]

# Streams of one message; a group of more is sent alone.
_STREAMS_MAX = 500

_Message = tuple[Sequence[Evidence], Thresholds, int]


class JudgingProcess:
    """The process. A call judges groups of streams like ``judging.judged_rows``; one call at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def __call__(self, groups: Sequence[Evidence], thresholds: Thresholds, judged_at_ns: int) -> Judged:
        """Judge groups of streams. Those over which the process ends twice are left out, with an ``EOFError`` among the errors.

        Raises ``StoreUnavailable`` if the process cannot be started: that is the fault of no stream.
        """
        waiting = deque(_parts(groups))
        answers: list[Judged] = []
        failed: list[Evidence] | None = None
        with self._lock:
            while waiting:
                known = len(answers)
                error = self._exchange([(part, thresholds, judged_at_ns) for part in waiting], answers)
                for _ in range(len(answers) - known):
                    waiting.popleft()
                if error is None or waiting[0] is not failed:
                    # It was killed, perhaps for memory.
                    failed = waiting[0] if waiting else None
                    continue
                # Groups by themselves: one cannot be judged, and the others must not be left out with it.
                if singles := _singles(waiting.popleft()):
                    waiting.extendleft(reversed(singles))
                else:
                    answers.append(Judged.failed(EOFError(f"the process that judges streams ended twice over the same ones: {error}")))
        return Judged.joined(answers)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _exchange(self, messages: Sequence[_Message], answers: list[Judged]) -> EOFError | OSError | None:
        """Send the messages and append the answers. Return the error if the process ends before the last answer.

        The next message is on its way while the process judges. Raises the error of a message that cannot be pickled, and
        ``StoreUnavailable`` if the process cannot be started.
        """
        unsent: list[Exception] = []
        try:
            process = self._running()
        except OSError as error:
            raise StoreUnavailable(f"the process that judges streams cannot be started: {error}") from error
        assert process.stdin is not None and process.stdout is not None
        writing = threading.Thread(target=_write_all, args=(process.stdin, messages, unsent), name="legato-evidence", daemon=True)
        writing.start()
        failed: EOFError | OSError | None = None
        try:
            for _ in messages:
                answers.append(read(process.stdout))
        except (EOFError, OSError) as error:
            failed = error
            process.kill()
        except BaseException:
            # The answers that were not read would be taken for those to the next messages.
            process.kill()
            writing.join()
            self._end()
            raise
        writing.join()
        if failed is not None:
            self._end()
        if unsent:
            raise unsent[0]
        return failed

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            self._process = start(__name__)
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    # What was written last cannot be sent any more.
                    continue
        process.wait()


def _parts(groups: Sequence[Evidence]) -> list[list[Evidence]]:
    """Divide the groups into messages."""
    parts: list[list[Evidence]] = []
    streams = _STREAMS_MAX
    for evidence in groups:
        if streams + len(evidence.streams) > _STREAMS_MAX:
            parts.append([])
            streams = 0
        parts[-1].append(evidence)
        streams += len(evidence.streams)
    return parts


def _singles(groups: Sequence[Evidence]) -> list[list[Evidence]]:
    """Divide a message into smaller ones: by group, then by tenant, then into halves; none for a single stream."""
    if len(groups) > 1:
        return [[evidence] for evidence in groups]
    (evidence,) = groups
    tenants = by_tenant(evidence.streams)
    if len(tenants) > 1:
        return [[replace(evidence, streams=streams)] for streams in tenants.values()]
    half = len(evidence.streams) // 2
    return [[replace(evidence, streams=part)] for part in (evidence.streams[:half], evidence.streams[half:])] if half else []


def _write_all(pipe: IO[bytes], messages: Sequence[_Message], unsent: list[Exception]) -> None:
    """Write the messages. If one cannot be pickled, append the error to ``unsent`` and close the pipe, so that the other process ends."""
    try:
        for message in messages:
            write(pipe, message)
    except OSError:
        # The other process has ended; the reader of its answers handles that.
        return
    except Exception as error:
        unsent.append(error)
        with contextlib.suppress(OSError):
            pipe.close()


def _answer(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Judge what the parent sends, until it closes the pipe."""
    while True:
        try:
            message = read(requests)
        except EOFError:
            return
        judged = judged_rows(*message)
        # Evidence and rows of a large message are not kept until the next one.
        del message
        write(answers, judged)
        del judged


if __name__ == "__main__":
    _answer(*pipes())
