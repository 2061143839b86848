"""Recording the reads of an HTTP response: their times, the socket before late ones, the time until the next is requested, and the end.

The source yields bytes and may be synchronous or not. Both classes serve `_openai` and `_httpx`. A response that is closed before its
end is a cancel, unless its events show that it was complete.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from legato._clock import now_ns
from legato._errors import guard
from legato._loop import LoopLag, watch_loop
from legato._recorder import Origin, StreamRecorder
from legato._socket import QUIET_NS, socket_probe

__all__ = ["AsyncReads", "Reads", "connection_of"]


def connection_of(response: Any, origin: Origin) -> None:
    """Fill in the HTTP version and both addresses of the response's connection, as far as they are known."""
    origin.transport = "http/2" if getattr(response, "http_version", "") == "HTTP/2" else "http/1.1"
    network = (getattr(response, "extensions", None) or {}).get("network_stream")
    if network is None:
        return
    client, server = network.get_extra_info("client_addr"), network.get_extra_info("server_addr")
    if client:
        origin.client_address, origin.client_port = str(client[0]), int(client[1])
    if server:
        origin.server_address, origin.server_port = str(server[0]), int(server[1])


class _ResponseReads:
    """``holds``: also record the time until the next read is requested, because nothing above records each item."""

    def __init__(self, recorder: StreamRecorder, response: Any, *, holds: bool) -> None:
        self.recorder, self._holds = recorder, holds
        self._probe, self._reading = socket_probe(response), False

    def closing(self) -> None:
        """The response is closed. If a read fails, the HTTP library closes it before it raises: the error then determines the outcome."""
        if not self._reading:
            self.recorder.end("client_cancel")


class Reads(_ResponseReads):
    """The reads of a synchronous response."""

    def iterate(self, source: Iterator[bytes]) -> Iterator[bytes]:
        """Yield what the source yields, and record it."""
        recorder, read, probe, last = self.recorder, self.recorder.read, self._probe, now_ns()
        self._reading = True
        try:
            for data in source:
                now = now_ns()
                if now - last > QUIET_NS:
                    recorder.look(now, probe, len(data))
                last = now
                read((now, data))
                self._reading = False
                handed_over = now_ns()
                yield data
                self._reading = True
                if self._holds:
                    recorder.held_read(now, now_ns() - handed_over)
        except BaseException as error:
            recorder.end(error=error)
            raise
        recorder.end()


class AsyncReads(_ResponseReads):
    """The reads of an asynchronous response, and the event loop's lag before late ones."""

    async def iterate(self, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield what the source yields, and record it."""
        recorder, read, probe, last = self.recorder, self.recorder.read, self._probe, now_ns()
        loop: LoopLag | None = None
        with guard("event-loop lag"):
            loop = watch_loop(recorder)
        requested = last
        self._reading = True
        try:
            async for data in source:
                now = now_ns()
                if now - last > QUIET_NS:
                    recorder.look(now, probe, len(data))
                    if loop is not None:
                        recorder.late(now, loop.lag_ns(requested, now))
                last = now
                read((now, data))
                self._reading = False
                handed_over = now_ns()
                yield data
                self._reading = True
                requested = now_ns()
                if self._holds:
                    recorder.held_read(now, requested - handed_over)
        except BaseException as error:
            recorder.end(error=error)
            raise
        recorder.end()
