"""`legato.wrap`: items of every kind are measured, one row a stream, and advice for what is not iterable."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from typing import Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk
from opentelemetry.sdk.trace import ReadableSpan
from pydantic import BaseModel

import legato
from helpers.builders.completions import completions_server
from helpers.builders.formats import FORMATS, WORDS
from helpers.servers.formats import formats_app
from helpers.servers.serving import served
from legato._items import Items
from legato._silence import may_report

Spans = Callable[[], list[ReadableSpan]]
Columns = Callable[[ReadableSpan], dict[str, Any]]
SIZES = [len(word.encode()) for word in WORDS]


def of(spans: list[ReadableSpan]) -> dict[str, Any]:
    """Return the attributes of the only span."""
    (span,) = spans
    return dict(span.attributes or {})


def objects(name: str) -> list[Any]:
    """Return the events of a format as a library hands them out."""
    lines = [line.removeprefix(b"data: ") for event in FORMATS[name].events for line in event.splitlines() if line.strip().endswith(b"}")]
    return [json.loads(line) for line in lines]


class Event(BaseModel, extra="allow"):
    """An object with fields, as the libraries' own."""


@pytest.mark.parametrize("name", ["openai-chat", "openai-responses", "anthropic", "gemini", "ollama", "own-json"])
@pytest.mark.parametrize("make", [dict, lambda event: Event(**event)], ids=["dictionaries", "objects"])
def test_events_of_libraries(spans: Spans, columns: Columns, name: str, make: Callable[[Any], Any]) -> None:
    """Kinds, bytes, model, id, usage and finish are those of the events on the wire; the items pass unchanged."""
    given = [make(event) for event in objects(name)]
    assert all(passed is item for passed, item in zip(legato.wrap(given), given, strict=True))
    (span,) = spans()
    found, chunks = of([span]), columns(span)
    model, response_id, finish, tokens_in, tokens_out, provider = FORMATS[name].found
    assert [size for size in chunks["sizes"] if size] == SIZES and len(chunks["sizes"]) == len(given)
    assert (found.get("gen_ai.request.model", ""), found.get("gen_ai.response.id", "")) == (model, response_id)
    assert (found.get("gen_ai.response.finish_reasons") or ("",))[0] == finish and found.get("gen_ai.provider.name", "") == provider
    assert (found.get("gen_ai.usage.input_tokens"), found.get("gen_ai.usage.output_tokens")) == (tokens_in, tokens_out)


def test_objects_of_openai_and_a_missing_end(spans: Spans, columns: Columns) -> None:
    """An application may drop the last chunk, so its absence is no error."""
    chunks = [ChatCompletionChunk.model_validate({"created": 1, **event}) for event in objects("openai-chat")[:-1]]
    list(legato.wrap(chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content))
    (span,) = spans()
    assert of([span])["legato.stream.outcome"] == "complete" and columns(span)["sizes"] == SIZES


@pytest.mark.parametrize("name", ["openai-chat", "anthropic", "ollama", "own-text"])
@pytest.mark.parametrize("way", ["iter_lines", "iter_bytes", "iter_text"])
def test_bodies_by_hand(spans: Spans, columns: Columns, name: str, way: str) -> None:
    """Bytes, text and lines of a body are parsed, not counted; the start is the given one."""
    with served(formats_app()) as base:
        start = time.monotonic_ns()
        time.sleep(0.1)
        with httpx.stream("POST", f"{base}/{name}") as response:
            list(legato.wrap(getattr(response, way)(), start_ns=start))
    (span,) = spans()
    kinds, sizes = columns(span)["kinds"], columns(span)["sizes"]
    assert [size for size, kind in zip(sizes, kinds, strict=True) if kind == legato.Kind.TEXT] == SIZES
    assert of([span])["legato.stream.outcome"] == "complete" and of([span])["gen_ai.server.ttft"] >= 0.1


TIMES = (
    *("gen_ai.response.time_to_first_chunk", "gen_ai.client.operation.time_to_first_chunk", "gen_ai.server.ttft"),
    "langfuse.observation.completion_start_time",
)


def test_a_start_that_is_not_the_requests_gives_no_time_to_first_token(spans: Spans) -> None:
    """Under no key, and the span says so; with `start_ns` it has all."""
    list(legato.wrap(["a", "b"]))
    list(legato.wrap(["a", "b"], start_ns=time.monotonic_ns()))
    unknown, known = ([key for key in TIMES if key in (span.attributes or {})] for span in spans())
    assert (unknown, known) == ([], list(TIMES))
    assert [(span.attributes or {}).get("legato.stream.start_unknown") for span in spans()] == [True, None]


@given(
    st.lists(st.text(max_size=9) | st.binary(max_size=9) | st.none() | st.integers() | st.dictionaries(st.text(max_size=3), st.integers()))
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_items_make_it_raise(given: list[Any]) -> None:
    """Items of any type, also mixed."""
    items = Items()
    for item in given:
        items.feed(1, item)
    items.finish(1)
    assert len(items.scan.times) == len(items.scan.sizes) == len(items.scan.kinds)


def test_transport_vantage_and_measure(spans: Spans, columns: Columns) -> None:
    """As given; a measure of the application replaces the own one."""
    list(legato.wrap(["ab"], transport="websocket", vantage="server"))
    list(legato.wrap([(1, "abc")], measure=lambda item: len(item[1])))
    first, second = spans()
    assert first.attributes is not None and first.kind.name == "SERVER"
    assert (first.attributes["legato.stream.transport"], first.attributes["legato.stream.vantage"]) == ("websocket", "server")
    assert columns(second)["sizes"] == [3]


def test_what_is_not_iterable_is_refused() -> None:
    """In one sentence."""
    with pytest.raises(TypeError, match=r"wrap\(\) got int: expected an iterable"):
        legato.wrap(7)  # type: ignore[call-overload]


CLOSED: list[str] = []
REQUEST_S = 0.05


@contextmanager
def manager() -> Iterator[list[str]]:
    """Sends its request when it is entered."""
    time.sleep(REQUEST_S)
    yield ["a", "b"]
    CLOSED.append("manager")


async def words() -> AsyncIterator[str]:
    """The items of the asynchronous sources."""
    for word in ("a", "b"):
        yield word


async def coroutine() -> AsyncIterator[str]:
    """Sends its request when it is awaited."""
    await asyncio.sleep(REQUEST_S)
    return words()


@asynccontextmanager
async def async_manager() -> AsyncIterator[AsyncIterator[str]]:
    """Sends its request when it is entered."""
    await asyncio.sleep(REQUEST_S)
    yield words()
    CLOSED.append("async_manager")


@pytest.mark.parametrize("make", [coroutine, async_manager, manager, lambda: asyncio.ensure_future(coroutine())])
def test_a_source_that_is_not_open_yet_is_opened_with_the_first_item(spans: Spans, make: Callable[[], Any]) -> None:
    """Then its request is sent, so TTFT is known without `start_ns`; a task may have sent it before."""

    async def run() -> None:
        wrapped: Any = legato.wrap(make())
        time.sleep(2 * REQUEST_S)
        if make is manager:
            assert list(wrapped) == ["a", "b"]
        else:
            assert [word async for word in wrapped] == ["a", "b"]

    CLOSED.clear()
    asyncio.run(run())
    (span,) = spans()
    found, name = of([span]), getattr(make, "__name__", "")
    assert found["legato.stream.outcome"] == "complete" and CLOSED == ([name] if "manager" in name else [])
    if name == "<lambda>":
        assert found["legato.stream.start_unknown"] and "gen_ai.server.ttft" not in found
    else:
        assert REQUEST_S <= found["gen_ai.server.ttft"] and span.start_time is not None and span.end_time is not None
        assert found["gen_ai.server.ttft"] <= (span.end_time - span.start_time) / 1e9


def test_an_open_stream_of_a_manager_is_closed_and_one_that_was_not_opened_is_no_row(spans: Spans) -> None:
    """Leaving early is a cancel; a source that was never asked for an item has sent no request."""
    unused = legato.wrap(manager())
    unused.close()
    assert list(unused) == []
    with legato.wrap(manager()) as wrapped:
        next(wrapped)
    assert of(spans())["legato.stream.outcome"] == "client_cancel"


def test_an_instrumented_request_of_a_manager_has_one_row(spans: Spans) -> None:
    """That of the instrumentation."""

    @contextmanager
    def lines(url: str) -> Iterator[Iterator[str]]:
        with httpx.stream("POST", url) as response:
            yield response.iter_lines()

    with served(formats_app()) as base:
        legato.instrument_httpx()
        assert list(legato.wrap(lines(f"{base}/ollama")))
        legato.uninstrument_httpx()
    assert of(spans())["legato.stream.transport"] == "http/1.1"


def test_a_recorded_stream_has_one_row(spans: Spans) -> None:
    """That of the instrumentation, which knows more, whichever way the stream is handed out."""
    with served(formats_app()) as base, completions_server() as url, openai.OpenAI(base_url=url, api_key="none") as client:
        legato.instrument_openai()
        assert len(list(legato.wrap(client.chat.completions.create(model="normal", messages=[], stream=True)))) == len(WORDS) + 3
        legato.instrument_httpx()
        with httpx.stream("POST", f"{base}/anthropic") as response:
            list(legato.wrap(response.iter_lines()))

        async def read() -> None:
            async with httpx.AsyncClient() as asynchronous, asynchronous.stream("POST", f"{base}/ollama") as answer:
                assert [line async for line in legato.wrap(answer.aiter_lines())]

        asyncio.run(read())
        legato.uninstrument_httpx()
        legato.uninstrument_openai()
    assert [(span.attributes or {})["legato.stream.transport"] for span in spans()] == ["http/1.1"] * 3


def test_a_librarys_generator_has_one_row_and_an_applications_its_own(spans: Spans) -> None:
    """A generator of a library sends its request with the first item: then the instrumentation has the stream."""
    with served(formats_app()) as base:
        legato.instrument_httpx()
        source = "def lazily(httpx, url):\n    with httpx.stream('POST', url) as response:\n        yield from response.iter_lines()"
        for module in ("ollama._client", "application"):
            names: dict[str, Any] = {"__name__": module}
            exec(source, names)
            assert list(legato.wrap(names["lazily"](httpx, f"{base}/ollama")))
        legato.uninstrument_httpx()
    assert sorted(str((span.attributes or {})["legato.stream.transport"]) for span in spans()) == ["http/1.1", "http/1.1", "iterator"]


def test_asynchronous_items_and_their_end(spans: Spans, columns: Columns) -> None:
    """Closing is a cancel; lines keep their time."""

    async def lines() -> AsyncIterator[str]:
        for event in FORMATS["anthropic"].events:
            for line in event.decode().split("\n")[:-1]:
                yield line

    async def run() -> None:
        wrapped = legato.wrap(lines())
        for _ in range(12):
            await anext(wrapped)
        await wrapped.aclose()

    asyncio.run(run())
    assert of(spans())["legato.stream.outcome"] == "client_cancel"


class LibraryStream:
    """A stream as those of `openai`: both iterators are generators over it, and only its own ``close`` closes the connection."""

    def __init__(self) -> None:
        self.closed: list[str] = []

    def __iter__(self) -> Iterator[str]:
        try:
            yield from WORDS
        finally:
            self.closed.append("iterator")

    def close(self) -> None:
        """Close the connection."""
        self.closed.append("stream")


class AsyncLibraryStream(LibraryStream):
    """Such an asynchronous stream."""

    __iter__ = None  # type: ignore[assignment]

    async def __aiter__(self) -> AsyncIterator[str]:
        try:
            for word in WORDS:
                yield word
        finally:
            self.closed.append("iterator")

    async def close(self) -> None:  # type: ignore[override]
        """Close the connection."""
        self.closed.append("stream")


@pytest.mark.parametrize("is_block", [False, True])
def test_closing_closes_the_stream_itself(spans: Spans, is_block: bool) -> None:
    """The provider goes on generating while the connection is open."""
    stream, asynchronous = LibraryStream(), AsyncLibraryStream()
    wrapped = legato.wrap(stream)
    with wrapped if is_block else closing(wrapped):
        next(wrapped)

    async def run() -> None:
        wrapped = legato.wrap(asynchronous)
        async with wrapped if is_block else aclosing(wrapped):
            await anext(wrapped)

    asyncio.run(run())
    assert stream.closed == asynchronous.closed == ["iterator", "stream"]
    assert [(span.attributes or {})["legato.stream.outcome"] for span in spans()] == ["client_cancel"] * 2


def test_a_source_that_has_not_sent_its_request_is_not_reported(spans: Spans) -> None:
    """Another instrumentation may record what the generator of a library begins with its first item."""
    wrapped = legato.wrap(httpx.Response(200, text="a\nb").iter_lines())
    recorder = wrapped._recording.recorder
    assert recorder is not None and not may_report(recorder)
    assert next(wrapped) == "a" and may_report(recorder)
    wrapped.close()
    assert of(spans())["legato.stream.outcome"] == "client_cancel"
