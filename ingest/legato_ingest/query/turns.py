"""Turns of statements that run together, or alone: a lock for an event loop, shared by several or exclusive.

Statements run together, in the order of arrival, unless one must run alone because its tenant is under suspicion. Before that one begins,
the running ones end and no other begins. Afterwards the others have turns for as long as its wait and its run took together, and so half of
the time at least. Of several tenants that wait to run alone, the one that has used the least time is next. The module runs no statement and
does not decide which tenants are under suspicion.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

__all__ = ["Turns"]

# Of the time that a tenant's statements ran alone, half counts after so long.
_HALF_LIFE_S = 60.0


@dataclass(slots=True, eq=False)
class _Turn:
    tenant: str
    must_be_alone: Callable[[], bool]
    admitted: anyio.Event = field(default_factory=anyio.Event)
    began_s: float = 0.0


class Turns:
    """The turns of one event loop. ``most``: statements that run together."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._waiting: list[_Turn] = []
        self._running = 0
        self._alone: _Turn | None = None
        # Since when no other one begins, because one that must be alone is next.
        self._stopped_s: float | None = None
        # Until then the others have turns.
        self._shared_until_s = float("-inf")
        # How long the statements of a tenant ran alone, and when that was noted.
        self._used: dict[str, tuple[float, float]] = {}

    @asynccontextmanager
    async def turn(self, tenant: str, must_be_alone: Callable[[], bool]) -> AsyncIterator[None]:
        """Wait for a turn, which lasts as long as the context. ``must_be_alone`` is asked until the turn begins."""
        one = _Turn(tenant, must_be_alone)
        self._waiting.append(one)
        self._admit()
        try:
            await one.admitted.wait()
        except BaseException:
            if one.admitted.is_set():
                self._leave(one)
            else:
                self._waiting.remove(one)
                self._admit()
            raise
        try:
            yield
        finally:
            self._leave(one)

    def _leave(self, one: _Turn) -> None:
        self._running -= 1
        if one is self._alone:
            now_s = self._clock()
            ran_s, stopped_s = now_s - one.began_s, one.began_s if self._stopped_s is None else self._stopped_s
            self._alone, self._stopped_s, self._shared_until_s = None, None, 2 * now_s - stopped_s
            self._used = {tenant: (used_s, now_s) for tenant in self._used if (used_s := self._used_s(tenant)) > 0.01}
            self._used[one.tenant] = self._used_s(one.tenant) + ran_s, now_s
        self._admit()

    def _admit(self) -> None:
        """Admit those that may run now."""
        if not self._waiting and self._alone is None:
            # The one that the others waited for has left.
            self._stopped_s = None
        while self._waiting and self._alone is None:
            alone, shared = list[_Turn](), None
            for each in self._waiting:
                if each.must_be_alone():
                    alone.append(each)
                else:
                    shared = shared or each
            if not alone:
                self._stopped_s = None
            if alone and (self._clock() >= self._shared_until_s or not (shared or self._running)):
                if self._running:
                    # No other one begins until these have ended.
                    self._stopped_s = self._clock() if self._stopped_s is None else self._stopped_s
                    return
                self._alone = min(alone, key=lambda each: self._used_s(each.tenant))
                self._begin(self._alone)
            elif shared is not None and self._running < self._most:
                self._begin(shared)
            else:
                return

    def _begin(self, one: _Turn) -> None:
        self._waiting.remove(one)
        self._running += 1
        one.began_s = self._clock()
        one.admitted.set()

    def _used_s(self, tenant: str) -> float:
        used_s, at_s = self._used.get(tenant, (0.0, 0.0))
        return used_s * float(2.0 ** ((at_s - self._clock()) / _HALF_LIFE_S))
