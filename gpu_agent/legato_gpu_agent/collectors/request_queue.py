"""What collectors of finished requests have in common: requests that wait for their engine, and the times between two moments of one.

One idea: requests go with the steps of their engine, so they are of the engine of whoever tells those; until it has heard the first step,
they wait here, as many as fit. It reads nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from legato_gpu_agent.plugin.model import Engine, FinishedRequest
from legato_gpu_agent.plugin.protocol import Datagram

__all__ = ["WAITING_MAX", "Waiting", "microseconds", "seconds", "text"]

WAITING_MAX = 8_192
"""Of more requests that wait the oldest go."""
_TEXT_MAX = 255
_SECONDS_MAX = 1e6


class Waiting:
    """The requests of the engine called ``engine_id``, until ``epoch_ns`` says which one it is (ns since the epoch; 0: not known yet).

    ``dropped`` counts those that went because too many waited.
    """

    def __init__(self, engine_id: str, tell: Callable[[Datagram], None], epoch_ns: Callable[[], int]) -> None:
        self._id, self._tell, self._epoch_ns = engine_id, tell, epoch_ns
        self._requests: deque[FinishedRequest] = deque(maxlen=WAITING_MAX)
        self.dropped = 0

    def add(self, request: FinishedRequest) -> None:
        """One more."""
        self.dropped += len(self._requests) == WAITING_MAX
        self._requests.append(request)

    def tell(self) -> None:
        """All of them, where it is known which engine they are of."""
        epoch_ns = self._epoch_ns()
        if self._requests and epoch_ns:
            self._tell(Datagram(Engine(self._id, epoch_ns), finished=tuple(self._requests)))
            self._requests.clear()


def seconds(since_s: float | None, until_s: float | None) -> float | None:
    """From one to the other; ``None`` where that is not known, or cannot be (below 0, more than 1e6, no number)."""
    if since_s is None or until_s is None or not 0 <= until_s - since_s <= _SECONDS_MAX:
        return None
    return until_s - since_s


def microseconds(took_s: float | None) -> int:
    """As a record of a request has it: 0 for what is not known."""
    return round(1e6 * took_s) if took_s is not None else 0


def text(value: str) -> str:
    """What can be encoded, and is not too long."""
    return value[:_TEXT_MAX].encode("utf-8", "replace").decode()
