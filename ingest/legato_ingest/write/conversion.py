"""Conversion of received bodies to rows, in threads: large bodies one by one, small bodies of spans that wait at the same moment together.

A body of some KB can be megabytes after decompression, and take seconds. So bodies wait in lanes by their decompressed size, each with
separate threads, and a small body never waits for a large one. Tenants take turns. No timer delays a body while few arrive. Under a load,
conversions begin a few hundredths of a second apart, unless a body of a tenant that did not cause the load waits. The module answers no
request.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence, Set
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio

from legato_ingest.errors import Overloaded, release
from legato_ingest.otlp import http
from legato_ingest.otlp.batch import Batch
from legato_ingest.otlp.signals import SPANS
from legato_ingest.write.body import Body

__all__ = ["GROUP_BYTES", "LARGE_BYTES", "Conversions"]

LARGE_BYTES = 4 * 2**20
"""A body of more bytes after decompression is large: it is converted in the last lane, one batch after another."""

GROUP_BYTES = 512 * 1024
"""Bodies of about so many bytes are converted together, as they arrive and after decompression: some 30 ms."""

_T = TypeVar("_T")
_K = TypeVar("_K")

# So many large bodies, beside those that are converted, may be between two of their batches: they wait for room in the queue.
_BETWEEN = 1
# A body waits so long for its turn, and is refused then: its sender gives up soon, and the bodies that wait are in memory.
_TURN_S = 10.0
# Bodies that are converted together: so many, of at most so many bytes each.
_BODIES_MAX, _SMALL_BYTES_MAX = 128, 64 * 1024
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


class _Turns:
    """Bodies that wait. Tenants take turns, so that many bodies of one do not delay those of the others."""

    def __init__(self) -> None:
        self._of_tenant: dict[str, deque[_Waiting]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of_tenant.values()))

    def append(self, waiting: _Waiting) -> None:
        """Add a body."""
        self._of_tenant.setdefault(waiting.body.tenant, deque()).append(waiting)

    def remove(self, waiting: _Waiting) -> None:
        """Remove a body, unless it was taken."""
        own = self._of_tenant.get(waiting.body.tenant, deque())
        with suppress(ValueError):
            own.remove(waiting)
        if not own:
            self._of_tenant.pop(waiting.body.tenant, None)

    def has_other(self, tenants: Set[str]) -> bool:
        """Return whether a body of a tenant that is not one of these waits."""
        return not self._of_tenant.keys() <= tenants

    def take(self, most: int, bytes_max: int) -> list[_Waiting]:
        """Remove and return so many bodies at most, those of one tenant in their order. The last one may exceed the bytes."""
        group, size = list[_Waiting](), 0
        is_shared = len(self._of_tenant) > 1
        # What is left of a single tenant waits for the next group: its bodies would delay those of the others in this one.
        while self._of_tenant and len(group) < most and size < bytes_max and not (is_shared and len(self._of_tenant) == 1):
            tenant, own = next(iter(self._of_tenant.items()))
            group.append(own.popleft())
            size += len(group[-1].body.content)
            # The next turn of this tenant is after those of the others.
            del self._of_tenant[tenant]
            if own:
                self._of_tenant[tenant] = own
        return group


class _Neighbours:
    """The tenants of the bodies that arrive, as far as one asks whether a tenant sends alone."""

    def __init__(self) -> None:
        # The tenant of the last body, its time, and that of the last body of another tenant.
        self._tenant, self._at_s, self._other_at_s = "", float("-inf"), float("-inf")

    def has_others(self, tenant: str, now_s: float) -> bool:
        """Take note of a body, and return whether one of another tenant arrived within ``_OTHERS_S``."""
        if tenant != self._tenant:
            self._tenant, self._other_at_s = tenant, self._at_s
        self._at_s = now_s
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
    each of several bodies, ``None`` for each that it leaves to ``alone``.
    """

    def __init__(
        self,
        alone: Callable[[Body, int | None], Iterator[Batch] | None],
        together: Callable[[Sequence[Body]], Sequence[Batch | None]],
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
        self._waiting, self._neighbours = _Turns(), _Neighbours()
        # Tenants with bodies in the last conversion, while the next one is put off.
        self._gathering: frozenset[str] = frozenset()
        self._other_arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def is_place_wanted(self, tenant: str) -> bool:
        """Return whether a large body waits for the place of one of this tenant."""
        own = self._places_of.get(tenant, self._places)
        return any(limiter.statistics().tasks_waiting for limiter in (self._places, own))

    async def batches(self, body: Body) -> AsyncGenerator[Batch]:
        """Yield the rows of a body: one batch, or several of a large body, each converted when it is asked for.

        Raises ``Overloaded`` if too many bodies wait, and what the conversion raises.
        """
        has_others = self._neighbours.has_others(body.tenant, time.monotonic())
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
                most = 1 if has_others and bytes_max is not None else _most_of(body.tenant, self._threads[lane])
                own = _limiter_of(self._threads_of, (lane, body.tenant), most)
                batches = await self._converted_in(lane, own, self._begun, body, bytes_max)
                if batches is None:
                    continue
                first, others = batches
                yield first
                while others is not None and (batch := await self._converted_in(lane, own, next, others, None)):
                    yield batch
                return
        raise AssertionError("the last lane takes every body")

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
        self._waiting.append(waiting)
        if self._gathering and body.tenant not in self._gathering:
            self._other_arrived.set()
        if self._task is None:
            self._task = asyncio.create_task(self._convert_waiting())
        try:
            return await waiting.batch
        except asyncio.CancelledError:
            # The body of a request that is cancelled is no longer counted, so it must not stay in memory.
            self._waiting.remove(waiting)
            raise

    async def _convert_waiting(self) -> None:
        """Convert until no body waits."""
        try:
            while len(self._waiting):
                began_s = time.monotonic()
                group = self._waiting.take(_BODIES_MAX, GROUP_BYTES)
                has_left_some = len(self._waiting) > 0
                for waiting, batch in zip(group, await self._converted(group), strict=True):
                    # The request of a sender that has disconnected is cancelled.
                    if not waiting.batch.done():
                        waiting.batch.set_result(batch)
                if len(group) >= _BUSY_BODIES and not has_left_some:
                    await self._gather(group, began_s + _APART_S - time.monotonic())
        finally:
            self._task = None

    async def _gather(self, before: Sequence[_Waiting], seconds: float) -> None:
        """Wait so long for further bodies of the tenants of the last conversion, or until a body of another tenant waits."""
        self._gathering = frozenset(waiting.body.tenant for waiting in before)
        self._other_arrived.clear()
        try:
            if not self._waiting.has_other(self._gathering):
                async with asyncio.timeout(seconds):
                    await self._other_arrived.wait()
        except TimeoutError:
            pass
        finally:
            self._gathering = frozenset()

    async def _converted(self, group: Sequence[_Waiting]) -> Sequence[Batch | None]:
        if len(group) == 1:
            return [None]
        bodies = [waiting.body for waiting in group]
        try:
            batches = await _in_thread(self._threads[0], self._together, bodies)
            if len(batches) == len(group):
                return batches
        except Exception:
            # Out of memory, for example: a single body may still be converted, and its error is that of its request.
            pass
        return [None] * len(group)
