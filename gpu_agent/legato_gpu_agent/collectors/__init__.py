"""What the agent can ask on a node: one file a source, each a class with one method, `collect`.

One idea: a collector is asked now and then, in a thread of its own, and answers with readings; how often, what becomes of an error and
where the readings go is `watch`'s. One that has nothing to read here raises ``Absent`` with the reason, which is no failure. A collector
runs no command, writes nothing and needs no root.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from legato_gpu_agent.collectors.measurement import Found

__all__ = ["Absent", "Collector"]


class Absent(Exception):
    """There is nothing of this kind here: no driver, no such file, a kernel without it. Its text says what is not there."""


class Collector(Protocol):
    """One source. ``name`` tells it from others in metrics and logs; ``every_s``: seconds from one round to the next."""

    name: str
    every_s: float

    def collect(self, now_ns: int) -> Iterable[Found]:
        """Readings of this moment (ns since the epoch). Raises ``Absent``, or whatever went wrong."""
        ...
