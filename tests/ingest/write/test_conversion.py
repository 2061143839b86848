"""Conversion of bodies in threads: small ones that wait at the same moment together, and every body with its own result."""

from __future__ import annotations

import asyncio
import gzip
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest

from helpers.builders.spans import native_span, request
from helpers.platform.allocations import keeping_less_than
from helpers.servers.otlp import StubCommitter
from legato_ingest.errors import BadRequest, Overloaded
from legato_ingest.metrics import Metrics
from legato_ingest.otlp import http
from legato_ingest.otlp.batch import Batch
from legato_ingest.otlp.signals import POINTS, SPANS, Signal
from legato_ingest.settings import load
from legato_ingest.write.body import Body
from legato_ingest.write.committer import Committer, Receipt
from legato_ingest.write.conversion import Conversions
from legato_ingest.write.receiver import Receiver


def small(number: int = 1, signal: Signal = SPANS, content_type: str = http.PROTOBUF, size: int = 0) -> Body:
    """Return a body with a span."""
    body = request()
    native_span(body, trace_id=bytes([number]) * 16)
    return Body(signal, body.SerializeToString() + bytes(size), content_type, "", "")


async def until_true(condition: Callable[[], object]) -> None:
    """Wait until the condition is true. Fail after 10 s."""
    end_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.005)


async def batch_of(conversions: Conversions, body: Body) -> Batch:
    """Return the only batch of a body."""
    (batch,) = [each async for each in conversions.batches(body)]
    return batch


class Converters:
    """Converters that remember what they are given. The first call waits for ``gate``."""

    def __init__(self, leave: Callable[[Body], bool] = lambda body: False) -> None:
        self.alone: list[Body] = []
        self.together: list[list[Body]] = []
        self.gate, self.under_way = threading.Event(), threading.Event()
        self._leave = leave

    def one(self, body: Body, bytes_max: int | None) -> Iterator[Batch]:
        """Convert one body. A body with gzip is bad."""
        self.gate.wait(10)
        self.alone.append(body)
        if body.encoding:
            raise BadRequest("bad")
        return iter([Batch(spans=body.content[-1])])

    def several(self, bodies: Sequence[Body], bytes_max: int) -> list[Batch | None]:
        """Convert several bodies."""
        self.together.append(list(bodies))
        return [None if self._leave(body) else Batch(spans=body.content[-1]) for body in bodies]

    def several_when_open(self, bodies: Sequence[Body], bytes_max: int) -> list[Batch | None]:
        """Convert several bodies once ``gate`` is set. ``under_way`` is set before that."""
        self.under_way.set()
        assert self.gate.wait(10)
        return self.several(bodies, bytes_max)


def test_bodies_that_wait_are_converted_together() -> None:
    """The first is converted alone, those that arrive meanwhile at once; large ones, other signals and JSON alone."""
    made = Converters()

    async def main() -> list[Batch]:
        conversions = Conversions(made.one, made.several, 4)
        first = asyncio.create_task(batch_of(conversions, small(1)))
        await asyncio.sleep(0.05)
        rest = [asyncio.create_task(batch_of(conversions, small(number))) for number in range(2, 8)]
        others = [small(8, POINTS), small(9, content_type=http.JSON), small(10, size=65_536)]
        rest += [asyncio.create_task(batch_of(conversions, each)) for each in others]
        await asyncio.sleep(0.05)
        made.gate.set()
        return [await first, *[await each for each in rest]]

    batches = asyncio.run(main())
    assert len(batches) == 10
    assert sum(map(len, made.together)) == 6 and len(made.alone) == 4


def test_a_body_that_is_left_is_converted_alone_and_its_error_is_its_own() -> None:
    """The others have their rows."""
    made = Converters(leave=lambda body: bool(body.encoding))
    made.gate.set()
    bad = Body(SPANS, gzip.compress(b"?"), http.PROTOBUF, "gzip", "")

    async def main() -> list[Batch | BaseException]:
        conversions = Conversions(made.one, made.several, 4)
        return await asyncio.gather(*(batch_of(conversions, each) for each in (small(1), small(2), bad, small(3))), return_exceptions=True)

    results = asyncio.run(main())
    assert [type(each) for each in results] == [Batch, Batch, BadRequest, Batch]


def test_a_sender_that_leaves_keeps_no_other_waiting() -> None:
    """Its request is cancelled while it waits; the next bodies are converted. A fault of the joint conversion leaves all to the other."""
    made = Converters()
    made.several = lambda bodies, bytes_max: (_ for _ in ()).throw(MemoryError())  # type: ignore[method-assign]

    async def main() -> list[Batch]:
        conversions = Conversions(made.one, made.several, 4)
        first = asyncio.create_task(batch_of(conversions, small(1)))
        await asyncio.sleep(0.05)
        rest = [asyncio.create_task(batch_of(conversions, small(number))) for number in range(2, 6)]
        await asyncio.sleep(0.05)
        rest.pop(0).cancel()
        made.gate.set()
        return [await first, *[await each for each in rest], await batch_of(conversions, small(7))]

    assert len(asyncio.run(main())) == 5
    assert not made.together


def test_bodies_of_cancelled_requests_are_dropped() -> None:
    """While a conversion lasts, senders send and leave: their bodies do not stay in memory."""
    made = Converters()

    async def main() -> int:
        conversions = Conversions(made.one, made.several, 1)
        first = [asyncio.create_task(batch_of(conversions, small(1))) for _ in range(2)]
        await asyncio.sleep(0.05)
        left = [asyncio.create_task(batch_of(conversions, small(2))) for _ in range(500)]
        await asyncio.sleep(0.05)
        for each in left:
            each.cancel()
        await asyncio.sleep(0.05)
        waiting = len(conversions._queues[""][0])
        made.gate.set()
        await asyncio.gather(*first)
        return waiting

    made.several = lambda bodies, bytes_max: [next(made.one(body, None)) for body in bodies]  # type: ignore[method-assign]
    assert asyncio.run(main()) == 0


def test_a_cancelled_call_keeps_its_place_until_its_thread_ends() -> None:
    """Calls that begin a conversion and leave start no further thread meanwhile."""
    gate, running = threading.Event(), list[int]()

    def alone(body: Body, bytes_max: int | None) -> Iterator[Batch]:
        running.append(1)
        assert gate.wait(10)
        return iter([Batch()])

    async def main() -> None:
        conversions = Conversions(alone, lambda bodies, _: [None for _ in bodies], 1)
        tasks = []
        for _ in range(20):
            tasks.append(asyncio.create_task(batch_of(conversions, small(size=70_000))))
            await asyncio.sleep(0.02)
            tasks[-1].cancel()
        await until_true(lambda: running)
        await asyncio.sleep(0.1)
        assert len(running) == 1 and not tasks[0].done()
        gate.set()
        assert all(isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*tasks, return_exceptions=True))
        await batch_of(conversions, small(size=70_000))

    asyncio.run(main())
    assert len(running) == 2


def test_a_cancelled_call_keeps_no_body() -> None:
    """Also if its conversion fails: the error of the thread is in no cycle with the body."""

    gate, is_begun = threading.Event(), threading.Event()

    def alone(body: Body, bytes_max: int | None) -> Iterator[Batch]:
        is_begun.set()
        assert gate.wait(10)
        raise BadRequest(f"{len(body.content)} bytes")

    async def main() -> None:
        conversions = Conversions(alone, lambda bodies, _: [None for _ in bodies], 1)
        with keeping_less_than(1_000_000):
            for _ in range(3):
                gate.clear()
                is_begun.clear()
                task = asyncio.create_task(batch_of(conversions, small(size=2_000_000)))
                await until_true(is_begun.is_set)
                task.cancel()
                gate.set()
                with pytest.raises(asyncio.CancelledError):
                    await task
                del task
            await asyncio.sleep(0.1)

    asyncio.run(main())


def of_tenant(tenant: str, size: int = 0) -> Body:
    """Return a body of a tenant."""
    return replace(small(size=size), tenant=tenant)


def test_tenants_take_turns() -> None:
    """Two thousand small bodies of one tenant wait; that of another is in the next group."""
    made = Converters()

    async def main() -> list[int]:
        conversions = Conversions(made.one, made.several_when_open, 1)
        tasks = [asyncio.create_task(batch_of(conversions, of_tenant("greedy"))) for _ in range(2_000)]
        await asyncio.sleep(0.1)
        tasks += [asyncio.create_task(batch_of(conversions, of_tenant("other"))) for _ in range(3)]
        await asyncio.sleep(0.1)
        made.gate.set()
        await asyncio.gather(*tasks)
        return [sum(body.tenant == "other" for body in group) for group in made.together]

    groups = asyncio.run(main())
    assert groups[:2] == [0, 3] and sum(groups) == 3 and sum(map(len, made.together)) + len(made.alone) == 2_003


def test_a_tenant_never_has_all_threads_of_a_lane() -> None:
    """Its large bodies wait for one another, and that of another tenant is converted meanwhile."""
    gate, running = threading.Event(), list[str]()

    def alone(body: Body, bytes_max: int | None) -> Iterator[Batch] | None:
        running.append(body.tenant)
        assert body.tenant == "other" or gate.wait(10)
        return iter([Batch()])

    async def main() -> list[str]:
        conversions = Conversions(alone, lambda bodies, _: [None for _ in bodies], 3)
        greedy = [asyncio.create_task(batch_of(conversions, of_tenant("greedy", size=70_000))) for _ in range(9)]
        await until_true(lambda: len(running) >= 2)
        await asyncio.sleep(0.1)
        await batch_of(conversions, of_tenant("other", size=70_000))
        before = list(running)
        gate.set()
        await asyncio.gather(*greedy)
        return before

    assert asyncio.run(main()) == ["greedy", "greedy", "other"]
    assert len(running) == 10


def test_beside_another_tenant_a_tenant_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the other has sent nothing for a while."""
    gate, running = threading.Event(), list[str]()

    def alone(body: Body, bytes_max: int | None) -> Iterator[Batch] | None:
        running.append(body.tenant)
        assert body.tenant == "other" or gate.wait(10)
        return iter([Batch()])

    async def main() -> list[int]:
        conversions, counts = Conversions(alone, lambda bodies, _: [None for _ in bodies], 4), list[int]()
        for others_s, pause_s, expected in ((60.0, 0.0, 1), (0.3, 0.4, 3)):
            monkeypatch.setattr("legato_ingest.write.conversion._OTHERS_S", others_s)
            await batch_of(conversions, of_tenant("other", size=70_000))
            await asyncio.sleep(pause_s)
            running.clear()
            gate.clear()
            greedy = [asyncio.create_task(batch_of(conversions, of_tenant("greedy", size=70_000))) for _ in range(9)]
            await until_true(partial(lambda expected: len(running) >= expected, expected))
            await asyncio.sleep(0.1)
            counts.append(len(running))
            gate.set()
            await asyncio.gather(*greedy)
        return counts

    assert asyncio.run(main()) == [1, 3]


def test_large_bodies_of_a_tenant_have_their_processes_beside_others() -> None:
    """They are converted in processes, which leave Python's interpreter to the others."""
    gate, running = threading.Event(), list[int]()

    def alone(body: Body, bytes_max: int | None) -> Iterator[Batch] | None:
        if bytes_max is not None and body.tenant == "greedy":
            return None
        running.append(1)
        assert body.tenant == "other" or gate.wait(10)
        return iter([Batch()])

    async def main() -> int:
        conversions = Conversions(alone, lambda bodies, _: [None for _ in bodies], 12)
        await batch_of(conversions, of_tenant("other", size=70_000))
        greedy = [asyncio.create_task(batch_of(conversions, of_tenant("greedy", size=70_000))) for _ in range(3)]
        await until_true(lambda: len(running) >= 3)
        await asyncio.sleep(0.1)
        at_once = len(running) - 1
        gate.set()
        await asyncio.gather(*greedy)
        return at_once

    assert asyncio.run(main()) == 2


def test_a_body_that_waits_too_long_for_its_turn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait are in memory, and their senders may have left: 200 bodies of 300 KB would be converted for 45 minutes."""
    monkeypatch.setattr("legato_ingest.write.conversion._TURN_S", 0.1)

    def alone(body: Body, bytes_max: int | None) -> Iterator[Batch] | None:
        return None if bytes_max is not None else iter([Batch(spans=1), Batch(spans=2)])

    async def main() -> None:
        conversions = Conversions(alone, lambda bodies, _: [None] * len(bodies), 4)
        begun, go = asyncio.Semaphore(0), asyncio.Event()

        async def between_two_batches() -> list[int]:
            found = list[int]()
            async for batch in conversions.batches(of_tenant("", size=70_000)):
                found.append(batch.spans)
                begun.release()
                await go.wait()
            return found

        slow = [asyncio.create_task(between_two_batches()) for _ in range(2)]
        for _ in slow:
            await begun.acquire()
        others = [asyncio.create_task(batch_of(conversions, of_tenant("", size=70_000))) for _ in range(8)]
        # Threads find that the bodies are large, sooner or later. A fixed pause could be longer than the limit of a turn.
        async with asyncio.timeout(10):
            while not conversions.is_place_wanted(""):
                await asyncio.sleep(0)
        refused = await asyncio.gather(*others, return_exceptions=True)
        assert all(isinstance(each, Overloaded) for each in refused) and not conversions.is_place_wanted("")
        go.set()
        assert await asyncio.gather(*slow) == [[1, 2]] * 2

    asyncio.run(main())


def test_under_a_load_conversions_are_apart() -> None:
    """After several bodies at once the next ones gather; a single body is converted at once."""
    made, began = Converters(), list[float]()
    made.gate.set()

    def several(bodies: Sequence[Body], bytes_max: int) -> list[Batch | None]:
        began.append(time.monotonic())
        return [Batch() for _ in bodies]

    async def main() -> None:
        conversions = Conversions(made.one, several, 4)
        for _ in range(3):
            await asyncio.gather(*(batch_of(conversions, small(number)) for number in range(1, 6)))

    began_s = time.monotonic()
    asyncio.run(main())
    assert len(began) == 3 and began[-1] - began_s > 0.059


def test_bodies_that_arrive_during_a_conversion_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their conversion begins a pause after the one before it, so that more bodies are converted together."""
    monkeypatch.setattr("legato_ingest.write.conversion._APART_S", 1.0)
    made, began = Converters(), list[float]()

    def several(bodies: Sequence[Body], bytes_max: int) -> list[Batch | None]:
        began.append(time.monotonic())
        return made.several_when_open(bodies, bytes_max)

    async def main() -> None:
        conversions = Conversions(made.one, several, 4)
        tasks = [asyncio.create_task(batch_of(conversions, small(number))) for number in range(1, 6)]
        await asyncio.to_thread(made.under_way.wait, 10)
        tasks += [asyncio.create_task(batch_of(conversions, small(number))) for number in range(6, 9)]
        await asyncio.sleep(0.05)
        made.gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    # On a busy machine the first one begins later than it was due.
    assert len(began) == 2 and began[1] - began[0] >= 0.5


@pytest.mark.parametrize("is_late", [False, True], ids=["waits already", "arrives meanwhile"])
def test_a_tenant_waits_for_no_load_of_another(monkeypatch: pytest.MonkeyPatch, is_late: bool) -> None:
    """Neither for its conversion nor for the time in which its bodies gather."""
    monkeypatch.setattr("legato_ingest.write.conversion._APART_S", 30.0)
    made = Converters()

    async def main() -> None:
        conversions = Conversions(made.one, made.several_when_open, 4)
        greedy = [asyncio.create_task(batch_of(conversions, of_tenant("greedy"))) for _ in range(6)]
        await asyncio.to_thread(made.under_way.wait, 10)
        if is_late:
            made.gate.set()
            await asyncio.gather(*greedy)
        other = asyncio.create_task(batch_of(conversions, of_tenant("other")))
        await asyncio.sleep(0.05)
        made.gate.set()
        await asyncio.wait_for(asyncio.gather(other, *greedy), 10)
        later = [asyncio.create_task(batch_of(conversions, of_tenant("other"))) for _ in range(6)]
        await asyncio.wait_for(asyncio.gather(*later), 10)
        alone = asyncio.create_task(batch_of(conversions, of_tenant("other")))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(alone, 0.2)
        await asyncio.wait_for(batch_of(conversions, of_tenant("third")), 10)

    asyncio.run(main())


def test_a_tenant_is_not_held_to_the_rate_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group has as many bodies of one tenant as of the other; those that it leaves are converted without a pause."""
    monkeypatch.setattr("legato_ingest.write.conversion._APART_S", 30.0)
    made = Converters()

    async def main() -> None:
        conversions = Conversions(made.one, made.several_when_open, 4)
        tasks = [asyncio.create_task(batch_of(conversions, of_tenant("few"))) for _ in range(2)]
        await asyncio.to_thread(made.under_way.wait, 10)
        tasks += [asyncio.create_task(batch_of(conversions, of_tenant(tenant))) for tenant in ["many"] * 100 + ["few"] * 10]
        await asyncio.sleep(0.05)
        made.gate.set()
        await asyncio.wait_for(asyncio.gather(*tasks), 10)

    asyncio.run(main())
    assert sum(map(len, made.together)) + len(made.alone) == 112


def test_a_group_of_bodies_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred bodies of 60 KB, which take 0.4 s together, are converted in several groups, with no pause between them."""
    monkeypatch.setattr("legato_ingest.write.conversion._APART_S", 30.0)
    made = Converters()
    made.gate.set()

    async def main() -> None:
        conversions = Conversions(made.one, made.several, 4)
        await asyncio.wait_for(asyncio.gather(*(batch_of(conversions, of_tenant("", size=60_000)) for _ in range(100))), 20)

    asyncio.run(main())
    sizes = [sum(len(body.content) for body in group) for group in made.together]
    assert len(sizes) >= 10 and max(sizes) < 512 * 1024 + 64 * 1024


def test_beside_another_tenant_a_group_is_small() -> None:
    """Its bodies that are left after decompression stay in their order and are converted together next; no result is that of another."""
    asked, order = list[int](), list[bytes]()

    def two_at_once(bodies: Sequence[Body], bytes_max: int) -> list[Batch | None]:
        asked.append(bytes_max)
        order.extend(body.content[-2:] for body in bodies[:2] if body.tenant == "greedy")
        return [Batch(spans=int.from_bytes(body.content[-2:])) for body in bodies[:2]]

    def numbered(number: int, tenant: str) -> Body:
        body = small()
        return replace(body, content=body.content + number.to_bytes(2), tenant=tenant)

    async def main() -> None:
        conversions = Conversions(lambda body, _: iter([Batch(spans=int.from_bytes(body.content[-2:]))]), two_at_once, 4)
        bodies = [numbered(number, "other" if number in (0, 7) else "greedy") for number in range(100)]
        batches = await asyncio.gather(*(batch_of(conversions, body) for body in bodies))
        assert [batch.spans for batch in batches] == list(range(100))

    asyncio.run(main())
    assert set(asked) == {128 * 1024} and len(asked) > 40 and order == sorted(order)


def test_bodies_that_are_large_together_after_decompression_are_several_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred bodies of 1 KB with gzip that have 100 KB each: the group is the first ones."""
    together = list[int]()

    def counted(contents: Sequence[bytes], **more: Any) -> list[Batch | None]:
        together.append(len(contents))
        return [None] * len(contents)

    monkeypatch.setattr("legato_ingest.write.receiver.convert_bodies", counted)
    receiver = Receiver(load(), cast(Committer, StubCommitter(Receipt())), Metrics())
    bodies = [Body(SPANS, gzip.compress(bytes(100_000)), http.PROTOBUF, "gzip", tenant) for tenant in ("a", "b") * 50]
    assert receiver._convert_together(bodies, 512 * 1024) == [None] * 6
    assert together == [3, 3]


def test_a_small_body_waits_for_no_large_one() -> None:
    """Bodies that are small as they arrive and megabytes after decompression leave threads to those that stay small."""
    gate, converted = threading.Event(), list[int]()

    def alone(body: Body, bytes_max: int | None) -> Iterator[Batch] | None:
        size = len(gzip.decompress(body.content))
        if bytes_max is not None and size > bytes_max:
            return None
        if size > 128 * 1024:
            assert gate.wait(10)
        converted.append(size)
        return iter([Batch(spans=size)])

    def sized(size: int) -> Body:
        return Body(POINTS, gzip.compress(bytes(size)), http.PROTOBUF, "gzip", "")

    async def main() -> None:
        conversions = Conversions(alone, lambda bodies, _: [None] * len(bodies), 4)
        large = [asyncio.create_task(batch_of(conversions, sized(size))) for size in (200_000, 5_000_000) for _ in range(20)]
        await asyncio.sleep(0.05)
        for _ in range(5):
            assert (await asyncio.wait_for(batch_of(conversions, sized(1_000)), 5)).spans == 1_000
        assert converted == [1_000] * 5
        gate.set()
        assert sorted(batch.spans for batch in await asyncio.gather(*large)) == [200_000] * 20 + [5_000_000] * 20

    asyncio.run(main())
