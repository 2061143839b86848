"""The write-ahead log of an embedded store: payloads that are on disk before their requests are acknowledged, until their rows are stored.

Two segments take turns: while the payloads of one are inserted, new ones are appended to the other, and a segment without open payloads is
emptied. After a crash ``pending`` returns what may not be stored; a row that is stored is found as a duplicate. A third file keeps payloads
that could not be inserted. The module knows nothing of the contents of a payload.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import secrets
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from legato_ingest.errors import LegatoError, StoreUnavailable
from legato_ingest.storage.wal_records import KEY_BYTES, Payload, Record, bytes_of, framed, records_in

__all__ = ["ASIDE", "Payload", "WriteAheadLog", "bytes_of", "expect_all_stored", "folder_of", "left_aside"]

_log = logging.getLogger("legato")
# The number of the file with payloads that could not be inserted, after the two segments.
ASIDE = 2
_NAMES, _KEY_NAME = ("0.wal", "1.wal", "aside.wal"), "key"
# No record, and as large as most requests: a full disk has room for a byte.
_PROBE = bytes(65_536)


def folder_of(store: pathlib.Path) -> pathlib.Path:
    """Return the folder of the log of the store at this path."""
    return store / "legato_wal"


def expect_all_stored(store: pathlib.Path) -> None:
    """Raise ``LegatoError`` if the store at this path, which no process has open, lacks rows of acknowledged requests."""
    paths = [folder_of(store) / name for name in _NAMES[:ASIDE]]
    if sum(path.stat().st_size for path in paths if path.exists()):
        raise LegatoError(
            f"the last `legato serve` of this store was killed before it inserted all requests that it had acknowledged; they are in "
            f"{folder_of(store)}: start and stop `legato serve`, which inserts them, then repeat the command"
        )


def left_aside(store: pathlib.Path) -> str:
    """Return a sentence about the acknowledged requests of the store at this path that were set aside; empty if there are none.

    A server may have the store open. The rows of some of these requests may be stored: the file is emptied with its last.
    """
    path, key = folder_of(store) / _NAMES[ASIDE], folder_of(store) / _KEY_NAME
    if not path.exists() or not path.stat().st_size:
        return ""
    with path.open("rb") as file:
        found = records_in(file, key.read_bytes()[:KEY_BYTES] if key.exists() else b"").found
    return f"requests that were set aside because their inserts failed are not included (at most {len(found):,}); they are in {path}"


@dataclass(slots=True)
class _Segment:
    """An open file. ``size``: the bytes of its valid records; ``open``: the number of them that are not stored."""

    path: pathlib.Path
    file: int
    size: int = 0
    open: int = 0


class WriteAheadLog:
    """The log in a folder, which is created. One process may open it at a time (the store's lock). Thread-safe."""

    def __init__(self, folder: pathlib.Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = threading.Lock()
        self._segments = [_opened(folder / name) for name in _NAMES]
        self._key = _key_of(folder / _KEY_NAME)
        self.damaged = 0
        """The parts of the files that ``pending`` could not read: each was one or several requests."""
        self._current = 0
        self._rejects = False
        _sync_folder(folder)

    def pending(self) -> Iterator[tuple[int, bytes]]:
        """Yield each payload that may not be stored, with its segment, once after the log was opened. Each is to be given to ``stored``.

        Behind the last record there may be a part of one that was cut off by a crash; its request was not acknowledged. What is damaged
        is logged and counted, and costs no other record. Raises ``LegatoError`` where the disk cannot read: then nothing is dropped.
        """
        # All are counted before the first is stored or set aside: a segment is emptied with its last, and appended to behind it.
        found = [self._counted(segment) for segment in self._segments]
        for number, (segment, records) in enumerate(zip(self._segments, found, strict=True)):
            for record in records:
                with _reading(segment):
                    payload = os.pread(segment.file, record.size, record.at)
                if zlib.crc32(payload) == record.checksum:
                    yield number, payload
                else:
                    place = f"the record of {record.size} bytes at byte {record.at}"
                    _log.error("%s: %s is damaged: its request, which may have been acknowledged, is lost", segment.path, place)
                    self.damaged += 1
                    self.stored(number, 1)

    def _counted(self, segment: _Segment) -> list[Record]:
        """Take note of the records of a segment, and return them."""
        with _reading(segment), segment.path.open("rb") as file:
            records = records_in(file, self._key)
        for first, last in records.damaged:
            _log.error("%s: the bytes %d to %d are damaged: requests that were in them may be lost", segment.path, first, last)
        self.damaged += len(records.damaged)
        found = segment.path.stat().st_size
        if found > records.end:
            _log.warning("%s: %d bytes behind the last record are dropped", segment.path, found - records.end)
            os.ftruncate(segment.file, records.end)
        with self._lock:
            segment.size, segment.open = records.end, len(records.found)
        return records.found

    def append(self, payloads: Sequence[Payload]) -> int:
        """Append the payloads, wait until they are on disk, and return their segment. Raises ``StoreUnavailable``: then none counts."""
        with self._lock:
            segment = self._segments[self._current]
            segment.size = self._write(segment, framed(payloads, segment.size, self._key))
            segment.open += len(payloads)
            return self._current

    def check(self) -> None:
        """Raise ``StoreUnavailable`` if the last payloads could not be written, and none can be written now."""
        with self._lock:
            if self._rejects:
                segment = self._segments[self._current]
                self._write(segment, [_PROBE])
                # Until a request was written: it may be larger.
                self._rejects = True
                _cut(segment)

    def rotate(self) -> None:
        """Append to the other segment from now on if it is empty: then this one becomes empty once its payloads are stored."""
        with self._lock:
            other = 1 - self._current
            _empty_if_stored(self._segments[other])
            if self._segments[self._current].size and not self._segments[other].size:
                self._current = other

    def kept(self, size_max: int) -> tuple[int, int]:
        """Return the segment that is not appended to, and how many open payloads it has if the other one exceeds so many bytes; else 0."""
        with self._lock:
            other = 1 - self._current
            return other, self._segments[other].open if self._segments[self._current].size > size_max else 0

    def stored(self, segment: int, payloads: int) -> None:
        """Take note that so many payloads of a segment are stored."""
        with self._lock:
            self._segments[segment].open -= payloads
            _empty_if_stored(self._segments[segment])

    def set_aside(self, segment: int, payload: Payload) -> None:
        """Keep a payload that cannot be inserted: it is pending again after the next start. Raises ``StoreUnavailable``.

        There is no limit but the disk's: what stayed in its segment would keep the segment from being emptied.
        """
        if segment == ASIDE:
            return
        aside = self._segments[ASIDE]
        with self._lock:
            aside.size = self._write(aside, framed([payload], aside.size, self._key))
            aside.open += 1
        self.stored(segment, 1)

    def close(self) -> None:
        """Close the files."""
        for segment in self._segments:
            os.close(segment.file)

    def _write(self, segment: _Segment, parts: Iterable[bytes]) -> int:
        """Write behind the last record, and return where what was written ends. Raises ``StoreUnavailable``."""
        at = segment.size
        try:
            for part in parts:
                content = memoryview(part)
                while content:
                    written = os.pwrite(segment.file, content, at)
                    at, content = at + written, content[written:]
            os.fdatasync(segment.file)
        except OSError as error:
            # What was written is behind the last record; what cannot be cut off is overwritten next.
            self._rejects = True
            _cut(segment)
            raise StoreUnavailable(f"the write-ahead log {segment.path} rejects writes: {error.strerror}") from None
        except BaseException:
            _cut(segment)
            raise
        self._rejects = False
        return at


def _opened(path: pathlib.Path) -> _Segment:
    return _Segment(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))


@contextlib.contextmanager
def _reading(segment: _Segment) -> Iterator[None]:
    """Raise ``LegatoError`` for an error of the disk: what a repaired disk may still have must not be dropped."""
    try:
        yield
    except OSError as error:
        raise LegatoError(
            f"the write-ahead log {segment.path}, which holds acknowledged requests, cannot be read: {error.strerror}; repair the disk, or "
            f"put a copy of what can be read in its place (dd conv=noerror,sync bs=4096): only requests in the missing bytes are lost then"
        ) from None


def _key_of(path: pathlib.Path) -> bytes:
    """Return the key of the log's seals, which is made with the log. Without it, records are read up to the first that is damaged.

    Raises ``LegatoError`` if the key is there and cannot be read: records with a new key would later count as remains of refused writes.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
            if len(key := file.read(KEY_BYTES + 1)) == KEY_BYTES:
                return key
    except FileNotFoundError:
        pass
    except OSError as error:
        advice = "repair the disk, or remove the file, which is needed only to find requests behind a damaged one"
        raise LegatoError(f"the key of the write-ahead log, {path}, cannot be read: {error.strerror}; {advice}") from None
    key = secrets.token_bytes(KEY_BYTES)
    try:
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        _log.warning("the key of the write-ahead log, %s, cannot be written: %s", path, error.strerror)
    return key


def _empty_if_stored(segment: _Segment) -> None:
    """Empty a segment without open payloads. A disk that refuses this is asked again later."""
    if segment.open or not segment.size:
        return
    try:
        # A crash before this is on disk only leads to duplicates.
        os.ftruncate(segment.file, 0)
    except OSError as error:
        _log.warning("the write-ahead log %s was not emptied: %s", segment.path, error.strerror)
    else:
        segment.size = 0


def _cut(segment: _Segment) -> None:
    """Remove what is behind the last record, if the disk allows it."""
    with contextlib.suppress(OSError):
        os.ftruncate(segment.file, segment.size)


def _sync_folder(folder: pathlib.Path) -> None:
    """Make the names of new files durable."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
