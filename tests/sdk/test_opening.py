"""How `legato.wrap` opens and closes coroutines and context managers: as the application would without it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import openai
import pytest
from opentelemetry.sdk.trace import ReadableSpan

import legato
from legato._opening import is_unsent

Spans = Callable[[], list[ReadableSpan]]


def outcomes(spans: Spans) -> list[Any]:
    """Return how this test's streams ended."""
    return [(span.attributes or {})["legato.stream.outcome"] for span in spans()]


class Answer:
    """A stream of a library: two items, the second after ``more`` is set; it survives the time-out of a read."""

    def __init__(self) -> None:
        self.items, self.more, self.closed = ["a", "b"], asyncio.Event(), 0

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> str:
        if self.items == ["b"]:
            await self.more.wait()
        if not self.items:
            raise StopAsyncIteration
        return self.items.pop(0)

    async def close(self) -> None:
        self.closed += 1


async def asked(answer: Any) -> Any:
    """Return the stream, as `create(…)` of a client does."""
    return answer


def test_a_coroutines_stream_goes_on_after_a_time_out(spans: Spans) -> None:
    """Its own iterator is asked again."""

    async def run() -> None:
        answer = Answer()
        wrapped = legato.wrap(asked(answer))
        assert await anext(wrapped) == "a"
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(wrapped), 0.01)
        answer.more.set()
        assert [item async for item in wrapped] == ["b"]

    asyncio.run(run())
    assert outcomes(spans) == ["complete"]


def test_what_a_coroutine_returned_is_closed(spans: Spans) -> None:
    """By whatever closes it; a coroutine that was not awaited is closed itself."""
    closed = []

    async def generated() -> AsyncGenerator[str, None]:
        try:
            yield "a"
        finally:
            closed.append("generator")

    async def run() -> None:
        answer = Answer()
        for source in (answer, generated(), contextlib.aclosing(generated())):
            async with legato.wrap(asked(source)) as wrapped:
                assert await anext(wrapped) == "a"
        assert answer.closed == 1
        unused = legato.wrap(asked(answer))
        await unused.aclose()
        assert answer.closed == 1 and await _listed(unused) == []

    asyncio.run(run())
    assert closed == ["generator"] * 2 and outcomes(spans) == ["client_cancel"] * 3


_current: ContextVar[str] = ContextVar("current", default="")


def test_an_asynchronous_manager_is_left_in_the_task_that_entered_it(spans: Spans) -> None:
    """With the application's exception, which it may suppress; after the last item, too, and by whatever task read that."""
    left: list[Any] = []

    @contextlib.asynccontextmanager
    async def session() -> AsyncIterator[AsyncIterator[str]]:
        token = _current.set("entered")
        try:
            async with asyncio.timeout(60):
                yield Answer()
        except ValueError as error:
            left.append(error)
        finally:
            # Raises in another context.
            _current.reset(token)
            left.append(asyncio.current_task())

    async def run() -> None:
        failure = ValueError()
        async with legato.wrap(session()) as wrapped:
            async for _ in wrapped:
                break
        async with legato.wrap(session()):
            raise failure
        async with legato.wrap(session()) as wrapped:
            wrapped._source.more.set()
            assert await asyncio.create_task(_listed(wrapped)) == ["a", "b"]
        task = asyncio.current_task()
        assert left == [task, failure, task, task]

    asyncio.run(run())
    assert outcomes(spans) == ["client_cancel", "client_cancel", "complete"]
    assert all("gen_ai.server.ttft" in (span.attributes or {}) for span in spans()[::2])


async def _listed(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


def test_a_manager_gets_the_exception_of_the_block() -> None:
    """The synchronous one, too, and one that cannot be entered raises where the block begins."""

    @contextlib.contextmanager
    def session(*, works: bool) -> Iterator[list[str]]:
        if not works:
            raise ConnectionError
        with contextlib.suppress(ValueError):
            yield ["a"]

    with legato.wrap(session(works=True)) as wrapped:
        assert list(wrapped) == ["a"]
        raise ValueError
    with pytest.raises(ConnectionError), legato.wrap(session(works=False)):
        pass


def test_a_manager_of_both_kinds(spans: Spans) -> None:
    """The application's first use decides."""

    class Both:
        def __enter__(self) -> list[str]:
            return ["a", "b"]

        def __exit__(self, *exception: object) -> None:
            pass

        async def __aenter__(self) -> AsyncIterator[str]:
            answer = Answer()
            answer.more.set()
            return answer

        async def __aexit__(self, *exception: object) -> None:
            pass

    async def run() -> None:
        wrapped: Any = legato.wrap(Both())
        assert [item async for item in wrapped] == ["a", "b"]
        wrapped = legato.wrap(Both())
        async with wrapped as opened:
            assert await _listed(opened) == ["a", "b"]

    assert list(legato.wrap(Both())) == ["a", "b"]
    with legato.wrap(Both()) as opened:
        assert list(opened) == ["a", "b"]
    asyncio.run(run())
    assert outcomes(spans) == ["complete"] * 4


def test_the_time_to_first_token_of_a_manager_that_may_only_close(spans: Spans) -> None:
    """Unknown, unless the manager certainly sends the request."""
    list(legato.wrap(contextlib.closing(open(__file__, "rb"))))
    with contextlib.ExitStack() as stack:
        stack.enter_context(legato.wrap(contextlib.nullcontext(["a"])))
    assert [(span.attributes or {}).get("legato.stream.start_unknown") for span in spans()] == [True, True]
    with openai.OpenAI(api_key="none") as client:
        assert is_unsent(client.chat.completions.stream(model="m", messages=[]))
