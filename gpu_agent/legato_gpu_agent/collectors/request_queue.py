"""Shared code of the collectors of finished requests: a queue until the engine's epoch is known, and time differences of a request.

Finished requests are sent with the steps of their engine, so they need the epoch that the collector of the steps assigns. Until that
collector has received the first step, a bounded number of requests waits here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from legato_gpu_agent.plugin.model import Engine, FinishedRequest
from legato_gpu_agent.plugin.protocol import Datagram

__all__ = ["QUEUE_MAX", "RequestQueue", "microseconds", "seconds", "text"]

QUEUE_MAX = 8_192
"""Maximum number of queued requests; beyond it the oldest is dropped."""
_TEXT_MAX = 255
_SECONDS_MAX = 1e6


class RequestQueue:
    """Queues the requests of ``engine_id`` until ``epoch_ns`` returns its epoch (ns since the Unix epoch; 0: unknown), then emits them.

    ``dropped`` counts the requests beyond the bound.
    """

    def __init__(self, engine_id: str, emit: Callable[[Datagram], None], epoch_ns: Callable[[], int]) -> None:
        self._id, self._emit, self._epoch_ns = engine_id, emit, epoch_ns
        self._requests: deque[FinishedRequest] = deque(maxlen=QUEUE_MAX)
        self.dropped = 0

    def add(self, request: FinishedRequest) -> None:
        """Queue a request."""
        self.dropped += len(self._requests) == QUEUE_MAX
        self._requests.append(request)

    def flush(self) -> None:
        """Emit all queued requests if the epoch of the engine is known."""
        epoch_ns = self._epoch_ns()
        if self._requests and epoch_ns:
            self._emit(Datagram(Engine(self._id, epoch_ns), finished=tuple(self._requests)))
            self._requests.clear()


def seconds(start_s: float | None, end_s: float | None) -> float | None:
    """Return the time between two moments; ``None`` if one is unknown or the result is implausible (below 0, above 1e6, NaN)."""
    if start_s is None or end_s is None or not 0 <= end_s - start_s <= _SECONDS_MAX:
        return None
    return end_s - start_s


def microseconds(duration_s: float | None) -> int:
    """Return a duration as the record of a request has it: in whole µs, 0 for an unknown one."""
    return round(1e6 * duration_s) if duration_s is not None else 0


def text(value: str) -> str:
    """Return a text with at most 255 characters that can be encoded as UTF-8."""
    return value[:_TEXT_MAX].encode("utf-8", "replace").decode()
