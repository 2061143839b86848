"""Logs what becomes of the agent's flushes: one line when sending begins to fail, with the remedy, and one when it works again.

Without them, an agent with a wrong token or address would look like a healthy one. The module sends and counts nothing: the numbers in its
lines are those of the agent's metrics.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from legato_gpu_agent.agent.self_metrics import SelfMetrics

__all__ = ["SendLog", "status_advice"]

_log = logging.getLogger("legato")
# A fault that comes and goes with each flush is logged at most this often.
_REPEATED_S = 60.0
_ADVICE = {
    401: "set LEGATO_TOKEN to a token of `legato token add`",
    403: "the token may not write: add one that may",
    429: "the receiver is busy, or a limit of this node's tenant is reached: its log names it",
}


class SendLog:
    """The log of one exporter. A subject is what is sent ("steps", "measurements") or the queue; each is well or has one fault."""

    def __init__(self, metrics: SelfMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._clock = metrics, clock
        self._faults: dict[str, str] = {}
        self._logged_s: dict[tuple[str, str], float] = {}

    def failed(self, subject: str, fault: str, text: str) -> None:
        """Log ``text`` if this fault of the subject is new: it is another one than before, and was not logged in the last minute."""
        now_s = self._clock()
        if self._faults.get(subject) == fault or now_s - self._logged_s.get((subject, fault), float("-inf")) < _REPEATED_S:
            return
        self._faults[subject], self._logged_s[subject, fault] = fault, now_s
        _log.warning("%s", text)

    def worked(self, subject: str) -> None:
        """Log that the subject is well again, and what was dropped since the agent started, if a fault of it was logged."""
        if self._faults.pop(subject, None) is not None:
            _log.info("%s are sent again; dropped since the start: %s", subject, self._metrics.dropped_text() or "nothing")


def status_advice(status: int) -> str:
    """Return what to do about a receiver that answers with this status."""
    if status in _ADVICE:
        return _ADVICE[status]
    return "see the log of the receiver" if status >= 500 else "check that LEGATO_ENDPOINT is the base URL of `legato serve` (port 4318)"
