"""Reads the requests that SGLang finished from the files that it writes with --export-metrics-to-file.

Lines are only appended, so the state of a file is the offset up to which it was read; an incomplete last line is read again in the next
round. Lines from before the agent's start are not read. A line contains the prompt and may contain the response. The decoder's types have
no field for either, so they are skipped in the encoded bytes and never become values.

A line does not name the step in which the request ended, so its step is 0 (unknown).
"""

from __future__ import annotations

import contextlib
import heapq
import os
import pathlib
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, BinaryIO

import msgspec

from legato_gpu_agent.collectors.base import NotAvailable
from legato_gpu_agent.collectors.decode_errors import DecodeError, nothing_decoded, safe_reason
from legato_gpu_agent.collectors.measurement import Measured, Measurement
from legato_gpu_agent.collectors.request_queue import RequestQueue, microseconds, seconds, text
from legato_gpu_agent.plugin.model import FinishedRequest
from legato_gpu_agent.plugin.protocol import Datagram

__all__ = ["LINE_BYTES_MAX", "RequestFiles"]

LINE_BYTES_MAX = 8 * 2**20
"""Longer lines are skipped. A prompt of a million tokens has about 7 MB."""
# SGLang writes one file per hour; the newest ones are read, because the last ones before may have unread lines.
_FILES_MAX = 3
_NAME = re.compile(r"sglang-request-metrics-\d{8}_\d{2}\.log")
# Bounds of one round; the rest is read in the next.
_LINES_MAX, _READ_BYTES_MAX = 8_192, 64 * 2**20

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class _Reason(msgspec.Struct):
    type: str = ""


class _Line(msgspec.Struct):
    id: str
    finish_reason: _Reason | str | None = None
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    num_retractions: _Count | None = None
    queue_time: float | None = None
    forward_entry_time: float | None = None
    prefill_finished_time: float | None = None
    first_token_latency: float | None = None
    e2e_latency: float | None = None


@dataclass(slots=True)
class _Position:
    """The offset up to which a file was read; ``skipping``: the offset is within a line to be skipped."""

    inode: int
    offset: int
    skipping: bool


class RequestFiles:
    """Reads the files in ``folder`` of ``engine_id``; the requests of a round are passed to ``emit``.

    ``epoch_ns`` returns the epoch of the engine, as the collector of its steps knows it (``ForwardPasses.epoch_ns``), 0 while unknown.
    Without it the engine's epoch is the first round.
    """

    def __init__(
        self,
        engine_id: str,
        folder: pathlib.Path | str,
        emit: Callable[[Datagram], None],
        every_s: float = 1.0,
        epoch_ns: Callable[[], int] | None = None,
    ) -> None:
        self.name, self.every_s = f"request files {engine_id}", every_s
        self._id, self._folder = engine_id, pathlib.Path(folder)
        self._start_ns = 0
        self._queue = RequestQueue(engine_id, emit, epoch_ns or (lambda: self._start_ns))
        self._decoder = msgspec.json.Decoder(_Line)
        self._positions: dict[str, _Position] = {}
        # The newest file name seen; ``None`` before the folder was listed. A file with a later name is new and read from its start.
        self._newest: str | None = None
        self._lines: Counter[str] = Counter()
        self._why = ""
        self._lines_left = self._bytes_left = 0

    def collect(self, now_ns: int) -> Iterator[Measured]:
        """Yield counters of lines. Raises ``NotAvailable`` without the folder or without files in it, ``OSError`` for unreadable files.

        Raises ``DecodeError`` if all lines since the last round are bad.
        """
        self._start_ns = self._start_ns or now_ns
        self._lines_left, self._bytes_left = _LINES_MAX, _READ_BYTES_MAX
        before, names, bad, taken = self._newest, self._names(), self._lines["bad"], self._lines["taken"]
        for name in names:
            # A file may be deleted between the listing and here.
            with contextlib.suppress(FileNotFoundError):
                self._follow(name, is_new=before is not None and name > before)
        self._queue.flush()
        self._raise_if_all_bad(self._lines["bad"] - bad, self._lines["taken"] - taken)
        for outcome, count in (("taken", self._lines["taken"]), ("bad", self._lines["bad"]), ("dropped", self._queue.dropped)):
            attributes = (("legato.engine.id", self._id), ("legato.outcome", outcome))
            yield Measurement("legato.agent.request_lines", "{line}", float(count), attributes, self._start_ns)

    def _raise_if_all_bad(self, bad: int, taken: int) -> None:
        if bad and not taken:
            raise DecodeError(
                f"{self._folder}: {nothing_decoded(bad, 'lines', self._why, 'lines that SGLang writes for finished requests')}"
            )

    def _names(self) -> list[str]:
        """Return the newest files, in ascending order."""
        try:
            with os.scandir(self._folder) as entries:
                names = sorted(heapq.nlargest(_FILES_MAX, (entry.name for entry in entries if _NAME.fullmatch(entry.name))))
        except (FileNotFoundError, NotADirectoryError):
            # All files of a folder that does not exist yet will be new.
            self._newest = self._newest or ""
            raise NotAvailable(
                f"{self._folder} is not a folder: does SGLang run with --export-metrics-to-file-dir {self._folder}?"
            ) from None
        self._newest = max([self._newest or "", *names])
        self._positions = {name: position for name, position in self._positions.items() if name in names}
        if not names:
            raise NotAvailable(f"{self._folder} has no sglang-request-metrics-*.log: does SGLang run with --export-metrics-to-file?")
        return names

    def _follow(self, name: str, is_new: bool) -> None:
        with _open(self._folder / name) as file:
            status = os.fstat(file.fileno())
            position = self._positions.get(name)
            if position is None:
                # A folder that is mounted late has files of before the agent's start.
                is_new = is_new and status.st_mtime_ns >= self._start_ns
                position = self._positions[name] = _Position(status.st_ino, 0, False) if is_new else _end_of(file, status)
            if status.st_ino != position.inode or status.st_size < position.offset:
                # The file was replaced or truncated: read it from its start.
                position.inode, position.offset, position.skipping = status.st_ino, 0, False
            while self._lines_left > 0 and self._bytes_left > 0:
                file.seek(position.offset)
                data = file.read(LINE_BYTES_MAX)
                self._bytes_left -= len(data)
                taken = self._take_lines(data, position)
                if not taken and len(data) == LINE_BYTES_MAX:
                    if not position.skipping:
                        self._reject(DecodeError(f"a line of more than {LINE_BYTES_MAX // 2**20} MiB"))
                    taken, position.skipping = len(data), True
                if not taken:
                    return
                position.offset += taken

    def _take_lines(self, data: bytes, position: _Position) -> int:
        """Process the complete lines within the bound of the round; return their length in bytes."""
        start = 0
        while self._lines_left > 0 and (end := data.find(b"\n", start)) >= 0:
            if not position.skipping:
                self._take_line(data[start:end])
            self._lines_left -= 1
            start, position.skipping = end + 1, False
        return start

    def _take_line(self, line: bytes) -> None:
        try:
            request = _request_of(self._decoder.decode(line))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._reject(error)
            return
        self._lines["taken"] += 1
        self._queue.add(request)

    def _reject(self, error: Exception) -> None:
        self._lines["bad"] += 1
        self._why = safe_reason(error)


def _open(path: pathlib.Path) -> BinaryIO:
    """Open a regular file without blocking. Raises ``OSError`` for anything else."""
    file = open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path} is not a regular file")
    return file


def _end_of(file: BinaryIO, status: os.stat_result) -> _Position:
    """Return the position at the end of a file, which may be within a line."""
    file.seek(max(status.st_size - 1, 0))
    return _Position(status.st_ino, status.st_size, file.read(1) not in (b"", b"\n"))


def _request_of(line: _Line) -> FinishedRequest:
    """Return the record of a line; unknown values are 0. Raises ``DecodeError`` without an id."""
    if not line.id:
        raise DecodeError("a request without an id")
    reason = line.finish_reason.type if isinstance(line.finish_reason, _Reason) else line.finish_reason or ""
    return FinishedRequest(
        step=0,
        response_id=text(line.id),
        reason=text(reason),
        preemptions=line.num_retractions or 0,
        prompt_tokens=line.prompt_tokens or 0,
        output_tokens=line.completion_tokens or 0,
        queued_us=microseconds(seconds(0.0, line.queue_time)),
        prefill_us=microseconds(seconds(line.forward_entry_time, line.prefill_finished_time)),
        decode_us=microseconds(seconds(line.first_token_latency, line.e2e_latency)),
    )
