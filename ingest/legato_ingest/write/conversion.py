"""Conversion of received bodies to rows, in threads: large bodies one by one, small bodies of spans that wait at the same moment together.

No timer delays a body while few arrive. Under a load, conversions begin a few hundredths of a second apart. The module answers no request.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import anyio

from legato_ingest.otlp import http
from legato_ingest.otlp.batch import Batch
from legato_ingest.otlp.signals import SPANS
from legato_ingest.write.body import Body

__all__ = ["Conversions"]

# Bodies that are converted together: so many, of at most so many bytes each.
_BODIES_MAX, _SMALL_BYTES_MAX = 128, 64 * 1024
# After a conversion of so many bodies, the next one begins at the earliest so long after its begin.
_BUSY_BODIES, _APART_S = 4, 0.05


@dataclass(slots=True, eq=False)
class _Waiting:
    """A body in the queue. Its batch is ``None`` if it has to be converted alone."""

    body: Body
    batch: asyncio.Future[Batch | None]


def _is_small(body: Body) -> bool:
    """Return whether the body may be converted together with others."""
    return body.signal is SPANS and http.check_type(body.content_type) != http.JSON and len(body.content) <= _SMALL_BYTES_MAX


class Conversions:
    """Converts bodies on threads of ``limiter``. Used on one event loop.

    ``alone`` returns the batch of a body; ``together`` returns the batches of several, ``None`` for each that it leaves to ``alone``.
    """

    def __init__(
        self,
        alone: Callable[[Body], Batch],
        together: Callable[[Sequence[Body]], Sequence[Batch | None]],
        limiter: anyio.CapacityLimiter,
    ) -> None:
        self._alone, self._together, self._limiter = alone, together, limiter
        self._waiting: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None

    async def batch(self, body: Body) -> Batch:
        """Return the rows of a body. Raises what its conversion raises."""
        batch = await self._with_others(body) if _is_small(body) else None
        if batch is not None:
            return batch
        return await anyio.to_thread.run_sync(self._alone, body, limiter=self._limiter)

    async def _with_others(self, body: Body) -> Batch | None:
        waiting = _Waiting(body, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._task is None:
            self._task = asyncio.create_task(self._convert_waiting())
        try:
            return await waiting.batch
        except asyncio.CancelledError:
            # The body of a request that is cancelled is no longer counted, so it must not stay in memory.
            with suppress(ValueError):
                self._waiting.remove(waiting)
            raise

    async def _convert_waiting(self) -> None:
        """Convert until no body waits."""
        try:
            while self._waiting:
                began_s = time.monotonic()
                group = [self._waiting.popleft() for _ in range(min(len(self._waiting), _BODIES_MAX))]
                for waiting, batch in zip(group, await self._converted(group), strict=True):
                    # The request of a sender that has disconnected is cancelled.
                    if not waiting.batch.done():
                        waiting.batch.set_result(batch)
                if len(group) >= _BUSY_BODIES:
                    await asyncio.sleep(max(0.0, began_s + _APART_S - time.monotonic()))
        finally:
            self._task = None

    async def _converted(self, group: Sequence[_Waiting]) -> Sequence[Batch | None]:
        if len(group) == 1:
            return [None]
        bodies = [waiting.body for waiting in group]
        try:
            return await anyio.to_thread.run_sync(self._together, bodies, limiter=self._limiter)
        except Exception:
            # Out of memory, for example: a single body may still be converted, and its error is that of its request.
            return [None] * len(group)
