"""What a thread of a pool has of its caller's context."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from starlette.concurrency import run_in_threadpool

import legato
from legato._context import current_conversation


def _record(model: str) -> str:
    with legato.stream(model=model) as recorder:
        recorder.record(1)
    return threading.current_thread().name


def test_a_pools_threads_get_conversation_and_span(spans: Callable[[], list[ReadableSpan]]) -> None:
    """Two calls of one carried function run at the same time, and the context is that of `carry`, not that of a later submit."""
    together = threading.Barrier(2, timeout=30)

    def work(model: str) -> str:
        together.wait()
        return _record(model)

    with ThreadPoolExecutor(2) as pool:
        with (
            legato.context(client="c", conversation_id="conversation"),
            trace.get_tracer("application").start_as_current_span("work") as span,
        ):
            carried = legato.carry(work)
        names = set(pool.map(carried, ("a", "b")))
        pool.submit(_record, "plain").result()
    assert len(names) == 2 and threading.current_thread().name not in names
    assert carried.__name__ == "work"
    found = {each.name: each for each in spans()}
    for name in ("chat a", "chat b"):
        parent = found[name].parent
        assert parent is not None and parent.span_id == span.get_span_context().span_id
        assert (found[name].attributes or {})["gen_ai.conversation.id"] == "conversation"
    assert found["chat plain"].parent is None
    assert "gen_ai.conversation.id" not in (found["chat plain"].attributes or {})


def test_threads_of_asyncio_and_starlette_inherit_it(spans: Callable[[], list[ReadableSpan]]) -> None:
    """They copy the context themselves, so they need no `carry`."""

    async def both() -> None:
        with legato.context(conversation_id="conversation"):
            await asyncio.to_thread(_record, "to_thread")
            await run_in_threadpool(_record, "starlette")

    asyncio.run(both())
    assert [(each.attributes or {})["gen_ai.conversation.id"] for each in spans()] == ["conversation"] * 2


def test_the_function_keeps_arguments_result_and_exception() -> None:
    """As without `carry`."""
    assert legato.carry(divmod)(7, 2) == (3, 1)
    assert legato.carry(lambda *given, **named: (given, named))(1, a=2) == ((1,), {"a": 2})
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(legato.carry(divmod), 1, 0).exception()
    assert isinstance(error, ZeroDivisionError)


@contextlib.contextmanager
def dependency() -> Iterator[None]:
    """A generator as FastAPI's dependencies are."""
    with legato.context(client="c", conversation_id="conversation"):
        yield


async def answer() -> AsyncIterator[int]:
    """A generator that its consumer leaves."""
    with legato.context(client="c", conversation_id="conversation"):
        yield 1
        yield 2


def test_a_generator_may_end_in_another_context() -> None:
    """FastAPI runs both halves of a dependency in copies of a context, and any task may close a generator: nothing is raised."""
    manager = dependency()
    contextvars.copy_context().run(manager.__enter__)
    assert not contextvars.copy_context().run(manager.__exit__, None, None, None)

    async def close() -> str:
        items = answer()
        assert await asyncio.create_task(anext(items)) == 1  # type: ignore[arg-type]
        with legato.context(conversation_id="other"):
            await items.aclose()  # type: ignore[attr-defined]
            return current_conversation()

    assert asyncio.run(close()) == "other"
