"""Turns of statements that run together, or alone: a lock for an event loop, shared or exclusive, in the order of arrival.

Several statements run at the same time, unless one of them has to run alone. That one waits for those that run, and later ones wait for it.
Whether a statement has to run alone is asked when its turn comes. The module runs no statement and knows no tenant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

__all__ = ["Turns"]


@dataclass(slots=True, eq=False)
class _Waiting:
    must_be_alone: Callable[[], bool]
    admitted: anyio.Event = field(default_factory=anyio.Event)


class Turns:
    """The turns of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()
        self._running, self._is_alone = 0, False

    @asynccontextmanager
    async def turn(self, must_be_alone: Callable[[], bool]) -> AsyncIterator[None]:
        """Wait for a turn, which lasts as long as the context."""
        one = _Waiting(must_be_alone)
        self._waiting.append(one)
        self._admit()
        try:
            await one.admitted.wait()
        except BaseException:
            if one.admitted.is_set():
                self._leave()
            else:
                self._waiting.remove(one)
                self._admit()
            raise
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        self._running -= 1
        self._admit()

    def _admit(self) -> None:
        """Admit those that wait, up to the first one that may not run now."""
        while self._waiting:
            if not self._running:
                self._is_alone = False
            must_be_alone = self._waiting[0].must_be_alone()
            if self._running and (must_be_alone or self._is_alone):
                return
            self._running, self._is_alone = self._running + 1, must_be_alone
            self._waiting.popleft().admitted.set()
