"""One row for each stream: not two where recordings are nested, and none missing for what runs inside a request that is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from typing import Any

import httpx2
import openai
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

import legato
from helpers.builders.completions import completions_server
from legato._context import is_recorded, recorded, serving
from legato._nested import is_recorded_already

Spans = Callable[[], list[ReadableSpan]]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of completions, with the instrumentations installed."""
    legato.instrument_openai()
    legato.instrument_httpx()
    with completions_server() as base:
        yield base
    legato.uninstrument()


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    """A client of the server."""
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


def test_helpers_and_raw_responses_of_openai_that_are_wrapped(client: openai.OpenAI, spans: Spans) -> None:
    """The helper keeps the stream in a field; the lines and bytes are generators over the response."""
    with client.chat.completions.stream(model="normal", messages=[]) as helper:
        list(legato.wrap(helper))
    reads: list[Callable[[Any], Iterator[Any]]] = [
        lambda response: response.iter_lines(),
        lambda response: response.iter_bytes(),
        lambda response: response.http_response.iter_lines(),
    ]
    for read in reads:
        with client.chat.completions.with_streaming_response.create(model="normal", messages=[], stream=True) as response:
            assert list(legato.wrap(read(response)))
    assert len(spans()) == 4


def test_objects_that_raise_or_have_every_attribute() -> None:
    """The look at an object of an application never fails, and takes no invented mark for one."""

    class Hostile:
        @property
        def response(self) -> Any:
            raise RuntimeError("no")

        def __getattr__(self, name: str) -> Any:
            return self

        def __iter__(self) -> Any:
            return iter(())

    assert not is_recorded_already(Hostile())


def test_what_is_recorded_ends_with_the_request_and_not_in_an_application() -> None:
    """A context that was copied inside does not keep the mark for ever."""
    copied: Context
    with recorded():
        assert is_recorded()
        copied = copy_context()
        with serving(dict):
            assert not is_recorded()
    assert not is_recorded() and not copied.run(is_recorded)


@pytest.mark.parametrize("above", ["httpx", "openai"])
def test_an_application_in_the_same_process(url: str, spans: Spans, above: str) -> None:
    """Called without a network, it has rows of its provider's streams."""

    async def passed_on(request: Request) -> StreamingResponse:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as provider:
            stream = await provider.chat.completions.create(model="normal", messages=[], stream=True)
            parts = [f"data: {chunk.model_dump_json()}\n\n" async for chunk in stream]
        return StreamingResponse(iter([*parts, "data: [DONE]\n\n"]), media_type="text/event-stream")

    async def run() -> None:
        app = Starlette(routes=[Route("/v1/chat/completions", passed_on, methods=["POST"])])
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://app") as inner:
            if above == "httpx":
                async with inner.stream("POST", "/v1/chat/completions", json={"stream": True}) as response:
                    await response.aread()
            else:
                asking = openai.AsyncOpenAI(base_url="http://app/v1", api_key="none", http_client=inner)
                assert [each async for each in await asking.chat.completions.create(model="outer", messages=[], stream=True)]

    asyncio.run(run())
    assert len(spans()) == 2
