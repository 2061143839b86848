"""The requests that SGLang finished, from the lines that it writes with --export-metrics-to-file.

One idea: a file's end moves and nothing else does, so all that is kept of a file is how far it was read; a last line that is not whole yet
is read again in the next round. What was there before us is not read. A line holds the prompt and may hold the answer: what is decoded has
no place for either, they are skipped in the bytes and never become values.

In which step a request ended the line does not say, so its step is 0 (not known).
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

from legato_gpu_agent.collectors import Absent
from legato_gpu_agent.collectors.decode_errors import Unusable, none_of, reason_of
from legato_gpu_agent.collectors.measurement import Found, Reading
from legato_gpu_agent.collectors.request_queue import Waiting, microseconds, seconds, text
from legato_gpu_agent.plugin.model import FinishedRequest
from legato_gpu_agent.plugin.protocol import Datagram

__all__ = ["LINE_BYTES_MAX", "RequestFiles"]

LINE_BYTES_MAX = 8 * 2**20
"""A line that is longer is skipped: a prompt of a million tokens has some 7 MB."""
# A file an hour: the newest, and those in which something may still be unread.
_FILES_MAX = 3
_NAME = re.compile(r"sglang-request-metrics-\d{8}_\d{2}\.log")
# In one round; what is left over is read in the next.
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
class _Place:
    """How far a file was read; ``skipping``: what comes is the rest of a line that is not wanted."""

    inode: int
    offset: int
    skipping: bool


class RequestFiles:
    """The files in ``folder`` of the engine called ``engine_id``; the requests of a round are given to ``tell``.

    ``epoch_ns`` says which engine they are of, as whoever tells its steps does (``ForwardPasses.epoch_ns``), 0 while it does not know;
    without it they are of one that began with the first round.
    """

    def __init__(
        self,
        engine_id: str,
        folder: pathlib.Path | str,
        tell: Callable[[Datagram], None],
        every_s: float = 1.0,
        epoch_ns: Callable[[], int] | None = None,
    ) -> None:
        self.name, self.every_s = f"request files {engine_id}", every_s
        self._id, self._folder = engine_id, pathlib.Path(folder)
        self._since_ns = 0
        self._waiting = Waiting(engine_id, tell, epoch_ns or (lambda: self._since_ns))
        self._decoder = msgspec.json.Decoder(_Line)
        self._places: dict[str, _Place] = {}
        # The newest name seen, once the folder was: a file of a later name is new, and read from its beginning.
        self._newest: str | None = None
        self._lines: Counter[str] = Counter()
        self._why = ""
        self._lines_left = self._bytes_left = 0

    def collect(self, now_ns: int) -> Iterator[Found]:
        """Counters of lines. Raises ``Absent`` without the folder or files in it, ``OSError`` for what may not be read.

        Raises ``Unusable`` where all that came since the round before is bad.
        """
        self._since_ns = self._since_ns or now_ns
        self._lines_left, self._bytes_left = _LINES_MAX, _READ_BYTES_MAX
        before, names, bad, taken = self._newest, self._names(), self._lines["bad"], self._lines["taken"]
        for name in names:
            # One that is deleted meanwhile is no failure.
            with contextlib.suppress(FileNotFoundError):
                self._follow(name, is_new=before is not None and name > before)
        self._waiting.tell()
        self._refuse_the_unusable(self._lines["bad"] - bad, self._lines["taken"] - taken)
        for what, count in (("taken", self._lines["taken"]), ("bad", self._lines["bad"]), ("dropped", self._waiting.dropped)):
            whose = (("legato.engine.id", self._id), ("legato.outcome", what))
            yield Reading("legato.agent.request_lines", "{line}", float(count), whose, self._since_ns)

    def _refuse_the_unusable(self, bad: int, taken: int) -> None:
        if bad and not taken:
            raise Unusable(f"{self._folder}: {none_of(bad, 'lines', self._why, 'lines that SGLang writes of finished requests')}")

    def _names(self) -> list[str]:
        """The newest files, the oldest first."""
        try:
            with os.scandir(self._folder) as entries:
                names = sorted(heapq.nlargest(_FILES_MAX, (entry.name for entry in entries if _NAME.fullmatch(entry.name))))
        except (FileNotFoundError, NotADirectoryError):
            raise Absent(f"{self._folder} is no folder: does SGLang run with --export-metrics-to-file-dir {self._folder}?") from None
        self._newest = max([self._newest or "", *names])
        self._places = {name: place for name, place in self._places.items() if name in names}
        if not names:
            raise Absent(f"{self._folder} holds no sglang-request-metrics-*.log: does SGLang run with --export-metrics-to-file?")
        return names

    def _follow(self, name: str, is_new: bool) -> None:
        with _opened(self._folder / name) as file:
            status = os.fstat(file.fileno())
            place = self._places.get(name)
            if place is None:
                place = self._places[name] = _Place(status.st_ino, 0, False) if is_new else _end_of(file, status)
            if status.st_ino != place.inode or status.st_size < place.offset:
                # Another file of this name, or one that was cut: it begins anew.
                place.inode, place.offset, place.skipping = status.st_ino, 0, False
            while self._lines_left > 0 and self._bytes_left > 0:
                file.seek(place.offset)
                data = file.read(LINE_BYTES_MAX)
                self._bytes_left -= len(data)
                taken = self._take_lines(data, place)
                if not taken and len(data) == LINE_BYTES_MAX:
                    if not place.skipping:
                        self._refused(Unusable(f"a line of more than {LINE_BYTES_MAX // 2**20} MiB"))
                    taken, place.skipping = len(data), True
                if not taken:
                    return
                place.offset += taken

    def _take_lines(self, data: bytes, place: _Place) -> int:
        """Take the whole lines, as many as this round may; how many bytes they have."""
        start = 0
        while self._lines_left > 0 and (end := data.find(b"\n", start)) >= 0:
            if not place.skipping:
                self._take(data[start:end])
            self._lines_left -= 1
            start, place.skipping = end + 1, False
        return start

    def _take(self, line: bytes) -> None:
        try:
            request = _request_of(self._decoder.decode(line))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._refused(error)
            return
        self._lines["taken"] += 1
        self._waiting.add(request)

    def _refused(self, error: Exception) -> None:
        self._lines["bad"] += 1
        self._why = reason_of(error)


def _opened(path: pathlib.Path) -> BinaryIO:
    """A plain file, opened without waiting. Raises ``OSError`` for anything else."""
    file = open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path} is no plain file")
    return file


def _end_of(file: BinaryIO, status: os.stat_result) -> _Place:
    """Its end, and whether that is within a line."""
    file.seek(max(status.st_size - 1, 0))
    return _Place(status.st_ino, status.st_size, file.read(1) not in (b"", b"\n"))


def _request_of(line: _Line) -> FinishedRequest:
    """Raises ``Unusable`` without an id. 0 is what is not known."""
    if not line.id:
        raise Unusable("a request without an id")
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
