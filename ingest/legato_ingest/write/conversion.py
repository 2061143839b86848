"""Conversion of received bodies to rows, in threads: large bodies one by one, small bodies of spans that wait at the same moment together.

A body of some KB can be megabytes after decompression, and take seconds. So bodies wait in lanes by their decompressed size, each with
separate threads, and a small body never waits for a large one. Each tenant has its own queue of small bodies, so that none waits for those
of another tenant. No timer delays a body while few arrive; under a load of a tenant, its conversions begin a few hundredths of a second
apart. The module answers no request.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio

from legato_ingest.errors import Overloaded, release
from legato_ingest.otlp import http
from legato_ingest.otlp.batch import Batch
from legato_ingest.otlp.signals import SPANS
from legato_ingest.write.body import Body

__all__ = ["LARGE_BYTES", "Conversions"]

LARGE_BYTES = 4 * 2**20
"""A body of more bytes after decompression is large: it is converted in the last lane, one batch after another."""

_T = TypeVar("_T")
_K = TypeVar("_K")

# So many large bodies, beside those that are converted, may be between two of their batches: they wait for room in the queue.
_BETWEEN = 1
# A body waits so long for its turn, and is refused then: its sender gives up soon, and the bodies that wait are in memory.
_TURN_S = 10.0
# Bodies that are converted together: so many, of at most so many bytes each.
_BODIES_MAX, _SMALL_BYTES_MAX = 128, 64 * 1024
# And of about so many bytes together, as they arrive and after decompression: some 30 ms, of hostile ones 0.2 s. Beside other tenants,
# which wait for the interpreter, less: bodies of a few KB, of which that is dozens, would hardly take less time each.
_GROUP_BYTES, _SHARED_GROUP_BYTES = 512 * 1024, 128 * 1024
# The lanes: the largest body after decompression (the last lane takes all that are accepted), and its share of the threads.
_LANES = ((128 * 1024, 1), (LARGE_BYTES, 2), (None, 4))
# A tenant has one thread of a lane for so long after a body of another tenant.
_OTHERS_S = 10.0
# After a conversion of so many bodies, the next one begins at the earliest so long after its begin, unless it left some.
_BUSY_BODIES, _APART_S = 4, 0.05


@dataclass(slots=True, eq=False)
class _Waiting:
    """A body in the queue. Its batch is ``None`` if it has to be converted alone."""

    body: Body
    batch: asyncio.Future[Batch | None]


class _Queue:
    """Bodies of one tenant that wait, in their order."""

    def __init__(self) -> None:
        self._bodies = deque[_Waiting]()

    def __len__(self) -> int:
        return len(self._bodies)

    def append(self, waiting: _Waiting) -> None:
        """Add a body."""
        self._bodies.append(waiting)

    def remove(self, waiting: _Waiting) -> None:
        """Remove a body, unless it was taken."""
        with suppress(ValueError):
            self._bodies.remove(waiting)

    def take(self, most: int, bytes_max: int) -> list[_Waiting]:
        """Remove and return so many bodies at most. The last one may exceed the bytes."""
        group, size = list[_Waiting](), 0
        while self._bodies and len(group) < most and size < bytes_max:
            group.append(self._bodies.popleft())
            size += len(group[-1].body.content)
        return group

    def put_back(self, taken: Sequence[_Waiting]) -> None:
        """Put bodies back that were taken, before the others."""
        # The request of a sender that has disconnected is cancelled.
        self._bodies.extendleft(waiting for waiting in reversed(taken) if not waiting.batch.done())


class _Neighbours:
    """The tenants of the bodies that arrive, as far as one asks whether a tenant sends alone."""

    def __init__(self) -> None:
        # The tenant of the last body, its time, and that of the last body of another tenant.
        self._tenant, self._at_s, self._other_at_s = "", float("-inf"), float("-inf")

    def note(self, tenant: str, now_s: float) -> None:
        """Record that a body of a tenant has arrived."""
        if tenant != self._tenant:
            self._tenant, self._other_at_s = tenant, self._at_s
        self._at_s = now_s

    def are_several(self, now_s: float) -> bool:
        """Return whether bodies of two tenants arrived within ``_OTHERS_S``."""
        return now_s - self._other_at_s < _OTHERS_S


def _is_small(body: Body) -> bool:
    """Return whether the body may be converted together with others."""
    return body.signal is SPANS and http.check_type(body.content_type) != http.JSON and len(body.content) <= _SMALL_BYTES_MAX


async def _in_thread(limiter: anyio.CapacityLimiter, convert: Callable[..., _T], *arguments: Any) -> _T:
    """Return the result of a function that runs in a thread. A cancelled caller waits until the thread has ended.

    Otherwise the place of the thread would be free while the thread runs, and calls that are cancelled would begin any number of threads.
    """
    task, is_cancelled = asyncio.ensure_future(anyio.to_thread.run_sync(convert, *arguments, limiter=limiter)), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled:
        _forget(task)
        raise asyncio.CancelledError
    # Not ``await task``: then the task would keep the traceback of an error, and with it the body.
    return task.result()


def _limiter_of(limiters: dict[_K, anyio.CapacityLimiter], key: _K, most: int) -> anyio.CapacityLimiter:
    """Return the limiter of a tenant, which has so many tokens from now on."""
    limiter = limiters.setdefault(key, anyio.CapacityLimiter(most))
    limiter.total_tokens = most
    return limiter


def _most_of(tenant: str, whole: anyio.CapacityLimiter) -> int:
    """Return how many tokens a tenant may have: one less than all, which is left for the others, and all without tenants."""
    return max(1, int(whole.total_tokens) - bool(tenant))


async def _take_turn(stack: AsyncExitStack, *limiters: anyio.CapacityLimiter) -> None:
    """Enter the limiters, which the stack leaves. Raises ``Overloaded`` after ``_TURN_S``."""
    try:
        with anyio.fail_after(_TURN_S):
            for limiter in limiters:
                await stack.enter_async_context(limiter)
    except TimeoutError:
        raise Overloaded(f"the body waited {_TURN_S:g} s for its turn to be decoded: retry later") from None


def _forget(task: asyncio.Future[Any]) -> None:
    """Take the result of a task that is done, so that its error keeps no frame."""
    try:
        task.result()
    except BaseException as error:
        release(error)


class Conversions:
    """Converts bodies on threads, ``requests_max`` small ones at a time. Used on one event loop.

    ``alone`` returns the batches of a body, or ``None`` for a body of more bytes than its second argument; ``together`` returns a batch for
    each of the first bodies of several, of about so many bytes as its second argument, ``None`` for each that it leaves to ``alone``.
    """

    def __init__(
        self,
        alone: Callable[[Body, int | None], Iterator[Batch] | None],
        together: Callable[[Sequence[Body], int], Sequence[Batch | None]],
        requests_max: int,
    ) -> None:
        self._alone, self._together = alone, together
        self._lanes = [(bytes_max, max(1, requests_max // share)) for bytes_max, share in _LANES]
        self._threads = [anyio.CapacityLimiter(threads) for _, threads in self._lanes]
        # A body of the last lane is in memory after decompression from its first batch to its last.
        self._places = anyio.CapacityLimiter(self._lanes[-1][1] + _BETWEEN)
        # The threads of a lane, and the places, that a tenant may have.
        self._threads_of: dict[tuple[int, str], anyio.CapacityLimiter] = {}
        self._places_of: dict[str, anyio.CapacityLimiter] = {}
        self._neighbours = _Neighbours()
        # The queues of small bodies by tenant, each with the task that converts them until none waits.
        self._queues: dict[str, tuple[_Queue, asyncio.Task[None]]] = {}

    def is_place_wanted(self, tenant: str) -> bool:
        """Return whether a large body waits for the place of one of this tenant."""
        own = self._places_of.get(tenant, self._places)
        return any(limiter.statistics().tasks_waiting for limiter in (self._places, own))

    async def batches(self, body: Body) -> AsyncGenerator[Batch]:
        """Yield the rows of a body: one batch, or several of a large body, each converted when it is asked for.

        Raises ``Overloaded`` if too many bodies wait, and what the conversion raises.
        """
        self._neighbours.note(body.tenant, time.monotonic())
        if _is_small(body) and (batch := await self._with_others(body)) is not None:
            yield batch
            return
        for lane, (bytes_max, _) in enumerate(self._lanes):
            if bytes_max is not None and len(body.content) > bytes_max:
                continue
            async with AsyncExitStack() as places:
                if bytes_max is None:
                    await _take_turn(places, _limiter_of(self._places_of, body.tenant, _most_of(body.tenant, self._places)), self._places)
                # Threads take turns at Python's interpreter, and each one of a tenant delays those of the others.
                # The last lane has processes.
                is_shared = bytes_max is not None and self._neighbours.are_several(time.monotonic())
                own = self._own_threads(lane, body.tenant, is_shared=is_shared)
                batches = await self._converted_in(lane, own, self._begun, body, bytes_max)
                if batches is None:
                    continue
                first, others = batches
                yield first
                while others is not None and (batch := await self._converted_in(lane, own, next, others, None)):
                    yield batch
                return
        raise AssertionError("the last lane takes every body")

    def _own_threads(self, lane: int, tenant: str, *, is_shared: bool) -> anyio.CapacityLimiter:
        """Return what limits a tenant's threads of a lane: one if it shares the interpreter with other tenants, else all but one."""
        return _limiter_of(self._threads_of, (lane, tenant), 1 if is_shared else _most_of(tenant, self._threads[lane]))

    async def _converted_in(self, lane: int, own: anyio.CapacityLimiter, convert: Callable[..., _T], *arguments: Any) -> _T:
        """Return the result of a conversion in a thread of a lane. Large bodies of a tenant take turns between two batches.

        ``own``: limits the threads of the tenant.
        """
        async with AsyncExitStack() as turn:
            if self._lanes[lane][0] is None:
                # A body of the last lane has a place, and perhaps stored rows: its wait is short and ends in no refusal.
                await turn.enter_async_context(own)
            else:
                await _take_turn(turn, own)
            return await _in_thread(self._threads[lane], convert, *arguments)

    def _begun(self, body: Body, bytes_max: int | None) -> tuple[Batch, Iterator[Batch] | None] | None:
        """Return the first batch of a body, and the others for a body of the last lane."""
        batches = self._alone(body, bytes_max)
        if batches is None:
            return None
        return (next(batches), batches) if bytes_max is None else (Batch.joined(batches), None)

    async def _with_others(self, body: Body) -> Batch | None:
        waiting = _Waiting(body, asyncio.get_running_loop().create_future())
        if body.tenant not in self._queues:
            queue = _Queue()
            self._queues[body.tenant] = queue, asyncio.create_task(self._convert_waiting(body.tenant, queue))
        queue, _ = self._queues[body.tenant]
        queue.append(waiting)
        try:
            return await waiting.batch
        except asyncio.CancelledError:
            # The body of a request that is cancelled is no longer counted, so it must not stay in memory.
            queue.remove(waiting)
            raise

    async def _convert_waiting(self, tenant: str, queue: _Queue) -> None:
        """Convert until no body of the tenant waits."""
        try:
            while queue:
                began_s = time.monotonic()
                is_shared = self._neighbours.are_several(began_s)
                size = _SHARED_GROUP_BYTES if is_shared else _GROUP_BYTES
                group = queue.take(_BODIES_MAX, size)
                has_left_some = len(queue) > 0
                batches = await self._converted(group, size, self._own_threads(0, tenant, is_shared=is_shared))
                has_left_some = has_left_some or len(batches) < len(group)
                queue.put_back(group[len(batches) :])
                for waiting, batch in zip(group, batches, strict=False):
                    # The request of a sender that has disconnected is cancelled.
                    if not waiting.batch.done():
                        waiting.batch.set_result(batch)
                is_busy = len(group) >= _BUSY_BODIES and not has_left_some
                # The rows do not stay in memory until the end of the next conversion.
                del group, batches, waiting, batch
                if is_busy:
                    await asyncio.sleep(began_s + _APART_S - time.monotonic())
        finally:
            del self._queues[tenant]

    async def _converted(self, group: Sequence[_Waiting], bytes_max: int, own: anyio.CapacityLimiter) -> Sequence[Batch | None]:
        """Return the batch of each of the first bodies, one at least; ``None`` for each that is to be converted alone."""
        if len(group) == 1:
            return [None]
        bodies = [waiting.body for waiting in group]
        try:
            async with own:
                batches = await _in_thread(self._threads[0], self._together, bodies, bytes_max)
            if 0 < len(batches) <= len(group):
                return batches
        except Exception:
            # Out of memory, for example: a single body may still be converted, and its error is that of its request.
            pass
        return [None] * len(group)
