"""Recording the reads of an HTTP response: their times, the socket before late ones, the time until the next is requested, and the end.

The source yields bytes and may be synchronous or not. Both classes serve `_openai`, `_httpx` and `_requests`. A response that is closed
before its end is a cancel, unless its events show that it was complete.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from legato._clock import now_ns
from legato._errors import guard
from legato._loop import LoopLag, watch_loop
from legato._recorder import Origin, StreamRecorder
from legato._socket import QUIET_NS, socket_probe
from legato._unparsed import PAGE_BYTES, READ_BYTES

__all__ = ["AsyncReads", "Reads", "attaching", "connection_of", "mark"]


@contextmanager
def attaching(place: str, recorder: StreamRecorder) -> Iterator[None]:
    """Run the block that attaches the recorder to a response, under ``guard``. If that fails, the stream is forgotten."""
    with guard(place):
        try:
            yield
        except Exception:
            recorder.discard()
            raise


def mark(response: Any, recorder: StreamRecorder) -> None:
    """Note on a response of httpx that it is recorded. Its extensions are left out of copies, its attributes are not."""
    extensions = getattr(response, "extensions", None)
    if isinstance(extensions, dict):
        extensions["legato"] = recorder


def connection_of(response: Any, origin: Origin) -> None:
    """Fill in the HTTP version and both addresses of the response's connection, as far as they are known.

    A Unix socket has none, and a connection that the server has reset has lost the server's: what arrived before can still be read.
    """
    origin.transport = "http/2" if getattr(response, "http_version", "") == "HTTP/2" else "http/1.1"
    network = (getattr(response, "extensions", None) or {}).get("network_stream")
    if network is None:
        return
    client, server = _address(network, "client_addr"), _address(network, "server_addr")
    if client is not None:
        origin.client_address, origin.client_port = client
    if server is not None:
        origin.server_address, origin.server_port = server


def _address(network: Any, which: str) -> tuple[str, int] | None:
    try:
        found = network.get_extra_info(which)
    except OSError:
        return None
    return (str(found[0]), int(found[1])) if found and isinstance(found, tuple) else None


class _ResponseReads:
    """``holds``: also record the time until the next read is requested, because nothing above records each item."""

    def __init__(self, recorder: StreamRecorder, response: Any, *, holds: bool) -> None:
        self.recorder, self._holds = recorder, holds
        self._probe = socket_probe(response)
        # The thread or task that waits for a read.
        self._reader: object = None

    def closing(self) -> None:
        """The response is closed. If a read fails, the HTTP library closes it before it raises: the error then determines the outcome.

        A close by another thread or task while a read waits is a cancel.
        """
        if self._reader is None or self._reader != self._current():
            self.recorder.end("client_cancel")

    def _current(self) -> object:
        return threading.get_ident()


class Reads(_ResponseReads):
    """The reads of a synchronous response."""

    def iterate(self, source: Iterator[bytes]) -> Iterator[bytes]:
        """Yield what the source yields, and record it."""
        recorder, unparsed, probe, holds = self.recorder, self.recorder.unparsed, self._probe, self._holds
        keep, room, held, current = unparsed.append, PAGE_BYTES, recorder.held_read, threading.get_ident
        last, handed_over = now_ns(), 0
        self._reader = current()
        try:
            for data in source:
                now = now_ns()
                if now - last > QUIET_NS:
                    recorder.look(now, probe, len(data))
                last = now
                room -= len(data) + READ_BYTES
                if room > 0:
                    keep((now, data))
                else:
                    room = unparsed.pay((now, data), room)
                self._reader = None
                if holds:
                    handed_over = now_ns()
                yield data
                self._reader = current()
                if holds:
                    held((now, now_ns() - handed_over))
        except BaseException as error:
            recorder.end(error=error)
            raise
        recorder.end()


class AsyncReads(_ResponseReads):
    """The reads of an asynchronous response, and the event loop's lag before late ones."""

    async def iterate(self, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield what the source yields, and record it."""
        recorder, unparsed, probe, holds = self.recorder, self.recorder.unparsed, self._probe, self._holds
        keep, room, held = unparsed.append, PAGE_BYTES, recorder.held_read
        loop: LoopLag | None = None
        with guard("event-loop lag"):
            loop = watch_loop(recorder)
        last = requested = now_ns()
        handed_over = 0
        self._reader = self._current()
        try:
            async for data in source:
                now = now_ns()
                if now - last > QUIET_NS:
                    recorder.look(now, probe, len(data))
                    if loop is not None:
                        recorder.late(now, loop.lag_ns(requested, now))
                last = now
                room -= len(data) + READ_BYTES
                if room > 0:
                    keep((now, data))
                else:
                    room = unparsed.pay((now, data), room)
                self._reader = None
                if holds:
                    handed_over = now_ns()
                yield data
                self._reader = self._current()
                requested = now_ns()
                if holds:
                    held((now, requested - handed_over))
        except BaseException as error:
            recorder.end(error=error)
            raise
        recorder.end()

    def _current(self) -> object:
        """Return the running task; outside of asyncio, where tasks are unknown, the thread."""
        try:
            return asyncio.current_task() or threading.get_ident()
        except RuntimeError:
            return threading.get_ident()
