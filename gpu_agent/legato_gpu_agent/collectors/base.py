"""The interface of a collector, and the exception for a source that this host does not have.

A collector runs in a separate thread, once per interval, and yields measurements. The interval, the handling of errors and the export of
measurements belong to `agent.collector_runner`. A collector runs no command, writes nothing and needs no root.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from legato_gpu_agent.collectors.measurement import Measured

__all__ = ["Collector", "NotAvailable"]


class NotAvailable(Exception):
    """The source does not exist here (no driver, no file, no kernel support), which is not a failure. The text names what is missing.

    ``is_coming``: it may exist soon, so it is looked for again after the usual interval.
    """

    def __init__(self, text: str, *, is_coming: bool = False) -> None:
        super().__init__(text)
        self.is_coming = is_coming


class Collector(Protocol):
    """One source. ``name`` identifies it in metrics and logs; ``every_s``: seconds from one round to the next."""

    name: str
    every_s: float

    def collect(self, now_ns: int) -> Iterable[Measured]:
        """Yield the measurements of this moment (ns since the epoch). Raises ``NotAvailable``, or any other error for a failure."""
        ...
