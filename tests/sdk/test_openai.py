"""Real `openai` clients against a real server: outcomes, timestamps taken at the bytes, and no text in the spans."""

from __future__ import annotations

import asyncio
import copy
import gc
import gzip
import pickle
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import httpx2
import openai
import pytest
from opentelemetry.sdk.trace import ReadableSpan

import legato
from helpers.builders.completions import WORDS, completions_server, seen_headers
from helpers.builders.formats import FORMATS
from helpers.builders.formats import WORDS as FORMATS_WORDS
from helpers.servers.waiting import until

Spans = Callable[[], list[ReadableSpan]]
Columns = Callable[[ReadableSpan], dict[str, Any]]
CONTENT = sum(len(word.encode()) for word in WORDS)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The base URL of a server, with the instrumentation installed."""
    legato.instrument_openai()
    with completions_server() as base:
        yield base
    legato.uninstrument_openai()


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    """A synchronous client."""
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


def start_stream(client: Any, model: str = "normal", **more: Any) -> Any:
    """Start a streaming chat completion."""
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": "q"}], stream=True, **more)


def only(spans: list[ReadableSpan]) -> dict[str, Any]:
    """Return the attributes of the only span."""
    (span,) = spans
    return dict(span.attributes or {})


def test_a_complete_stream_is_recorded(client: openai.OpenAI, spans: Spans, columns: Columns) -> None:
    """Kinds, sizes in UTF-8, times, usage, ids and the connection."""
    began_s = time.monotonic()
    taken_us = [1e6 * (time.monotonic() - began_s) for _ in start_stream(client)]
    assert len(taken_us) == len(WORDS) + 3
    (span,) = spans()
    found: dict[str, Any] = dict(span.attributes or {})
    assert found["legato.stream.outcome"] == "complete" and found["legato.stream.vantage"] == "client"
    assert found["gen_ai.request.model"] == "normal" and found["gen_ai.response.model"] == "served"
    assert found["gen_ai.response.id"] == "chatcmpl-test" and list(found["gen_ai.response.finish_reasons"]) == ["stop"]
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (7, 5)
    assert found["server.address"] == found["client.address"] == "127.0.0.1" and found["client.port"] > 0
    chunks = columns(span)
    assert chunks["kinds"] == [0, 1, 1, 1, 1, 1, 7, 4, 7]
    assert chunks["sizes"][1:6] == [len(word.encode()) for word in WORDS]
    assert 0 < found["legato.stream.ttfb"] < found["gen_ai.response.time_to_first_chunk"]
    # The server waits 20 ms before the first word and after each of the five. A busy client may read several words at once, but each after
    # it was sent and before the application has it.
    assert all(20_000 * number <= chunks["times_us"][number] <= taken_us[number] for number in range(1, 6))
    assert 120_000 <= chunks["times_us"][7] < 10_000_000


def test_no_text_leaves_the_process(client: openai.OpenAI, spans: Spans) -> None:
    """No attribute of the span contains a word of the answer."""
    list(start_stream(client))
    sent = repr([span.attributes for span in spans()])
    assert not any(word.strip(' "') in sent for word in WORDS)


def test_chunks_of_one_write_share_their_time(client: openai.OpenAI, spans: Spans, columns: Columns) -> None:
    """Events that arrive together are one read."""
    list(start_stream(client, "burst"))
    (span,) = spans()
    times = columns(span)["times_us"]
    assert len(set(times[1:6])) == 1


def test_time_between_items_is_a_hold(client: openai.OpenAI, spans: Spans, columns: Columns) -> None:
    """A sleep of the application between two chunks is recorded as the first one's hold."""
    taken_ms = list[float]()
    for number, _ in enumerate(start_stream(client)):
        taken_ms.append(1_000 * time.monotonic())
        if number == 2:
            time.sleep(0.3)
    taken_ms.append(1_000 * time.monotonic())
    (span,) = spans()
    chunks = columns(span)
    assert chunks["holds"] is not None
    holds_ms = [hold * 0.064 for hold in chunks["holds"]]
    # A busy machine holds the application for longer, but no time counts twice.
    assert 290 <= holds_ms[2] <= taken_ms[3] - taken_ms[1] + 1
    assert sum(holds_ms) - holds_ms[2] < taken_ms[-1] - taken_ms[0] - 300 + 100


def test_leaving_the_loop_is_a_cancel(client: openai.OpenAI, spans: Spans) -> None:
    """Leaving the loop without closing the stream is a cancel at the time of leaving."""
    stream = start_stream(client, "hang")
    for number, _ in enumerate(stream):
        if number == 2:
            break
    until(spans)
    assert only(spans())["legato.stream.outcome"] == "client_cancel"
    stream.close()


def test_a_second_loop_continues_the_stream(client: openai.OpenAI, spans: Spans) -> None:
    """Reading only the first chunk, and the rest in a second loop, is no cancel."""
    stream = start_stream(client)
    for _ in stream:
        break
    assert len(list(stream)) == len(WORDS) + 2
    assert only(spans())["legato.stream.outcome"] == "complete"


def test_closing_is_a_cancel(client: openai.OpenAI, spans: Spans) -> None:
    """Leaving a with block is a cancel, also when the application's own exception leaves it."""
    with pytest.raises(ZeroDivisionError), start_stream(client, "hang") as stream:
        for _ in stream:
            raise ZeroDivisionError
    assert only(spans())["legato.stream.outcome"] == "client_cancel"


@pytest.mark.parametrize(
    ("model", "outcome", "status"),
    [("cut", "upstream_error", "ERROR"), ("break", "upstream_error", "ERROR"), ("abort", "engine_abort", "UNSET")],
)
def test_an_incomplete_response_has_its_outcome(client: openai.OpenAI, spans: Spans, model: str, outcome: str, status: str) -> None:
    """A connection that breaks, a body that ends before the response does, and an engine that aborts."""
    try:
        list(start_stream(client, model))
    except Exception as error:
        assert model == "break", error
    (span,) = spans()
    assert only([span])["legato.stream.outcome"] == outcome
    assert span.status.status_code.name == status


def test_a_time_out_counts_its_open_gap(url: str, spans: Spans, columns: Columns) -> None:
    """The wait for the chunk that never arrived is the longest gap."""
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=0.4) as client, pytest.raises(Exception, match="."):
        list(start_stream(client, "hang"))
    (span,) = spans()
    found = only([span])
    assert found["legato.stream.outcome"] == "timeout" and "Timeout" in found["error.type"]
    # On a busy machine, some of the words may be late, too.
    late = sum(later - earlier >= 250_000 for earlier, later in pairwise(columns(span)["times_us"][1:]))
    assert found["legato.stream.gap_max"] >= 0.39 and found["legato.stream.stalls"] == 1 + late


def test_a_failed_request_has_a_span(client: openai.OpenAI, spans: Spans) -> None:
    """A response with status 500 has no chunks and an error type."""
    with pytest.raises(openai.InternalServerError):
        start_stream(client, "fail")
    found = only(spans())
    assert (found["legato.stream.outcome"], found["legato.stream.chunks"]) == ("upstream_error", 0)
    assert found["error.type"].endswith("InternalServerError")


@pytest.mark.usefixtures("url")
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 500, 503])
def test_an_error_of_the_callers_is_no_row(spans: Spans, status: int, is_async: bool) -> None:
    """As with the HTTP libraries: only 429 and the statuses from 500 are failed streams."""
    transport = httpx2.MockTransport(lambda request: httpx2.Response(status, json={"error": {"message": "text"}}))
    options: dict[str, Any] = {"base_url": "http://host", "api_key": "none", "max_retries": 0}

    async def asked() -> None:
        async with httpx2.AsyncClient(transport=transport) as http:
            await start_stream(openai.AsyncOpenAI(http_client=http, **options))

    before = legato.stats()["ignored"]
    with pytest.raises(openai.APIStatusError) as raised, httpx2.Client(transport=transport) as http:
        if is_async:
            asyncio.run(asked())
        start_stream(openai.OpenAI(http_client=http, **options))
    assert raised.value.status_code == status
    is_row = status == 429 or status >= 500
    assert [(span.attributes or {})["legato.stream.outcome"] for span in spans()] == ["upstream_error"] * is_row
    assert legato.stats()["ignored"] - before == (not is_row)


def test_calls_without_streaming_have_no_span(client: openai.OpenAI, spans: Spans) -> None:
    """A call that does not stream is not recorded."""
    client.chat.completions.create(model="normal", messages=[])
    assert spans() == []


def test_the_request_carries_the_trace_context(client: openai.OpenAI, spans: Spans) -> None:
    """The request has the trace context of the stream's span, and the caller's headers are unchanged."""
    mine = {"X-Mine": "1"}
    list(start_stream(client, extra_headers=mine))
    (span,) = spans()
    sent = seen_headers[-1]
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" in sent["traceparent"] and f"{span.context.span_id:016x}" in sent["traceparent"]
    assert mine == {"X-Mine": "1"} and sent["x-mine"] == "1"


def test_helpers_the_responses_api_and_raw_responses(client: openai.OpenAI, spans: Spans, columns: Columns) -> None:
    """The stream helper, the Responses API and raw responses are all recorded."""
    with client.chat.completions.stream(model="normal", messages=[]) as helped:
        list(helped)
    list(client.responses.create(model="r", input="q", stream=True))
    with client.chat.completions.with_streaming_response.create(model="normal", messages=[], stream=True) as raw:
        assert b"".join(raw.iter_bytes())
    first, second, third = spans()
    assert [only([span])["legato.stream.outcome"] for span in (first, second, third)] == ["complete"] * 3
    assert only([second])["gen_ai.response.id"] == "resp-test"
    assert [sum(columns(span)["sizes"]) for span in (first, second, third)] == [CONTENT] * 3


def test_asynchronous_ends(url: str, spans: Spans) -> None:
    """An asynchronous stream read to its end is complete; one cancelled by its task or closed is a cancel."""

    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
            assert len([chunk async for chunk in await start_stream(client)]) == len(WORDS) + 3

            begun = asyncio.Event()

            async def forever() -> None:
                async for _ in await start_stream(client, "hang"):
                    begun.set()

            task = asyncio.create_task(forever())
            await begun.wait()
            await asyncio.sleep(0.3)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            stream = await start_stream(client, "hang")
            await anext(aiter(stream))
            await stream.close()

    asyncio.run(run())
    gc.collect()
    assert [only([span])["legato.stream.outcome"] for span in spans()] == ["complete", "client_cancel", "client_cancel"]


def test_a_response_that_is_read_below_openai(client: openai.OpenAI, spans: Spans, columns: Columns) -> None:
    """Its bytes as a proxy passes them on; a response that was read can be pickled."""
    response = client.chat.completions.with_raw_response.create(model="normal", messages=[], stream=True).http_response
    assert b"".join(response.iter_raw())
    again = client.chat.completions.with_raw_response.create(model="normal", messages=[], stream=True).http_response
    again.read()
    assert pickle.loads(pickle.dumps(again)).content == again.content == copy.deepcopy(again).content
    found = spans()
    assert [(span.attributes or {})["legato.stream.outcome"] for span in found] == ["complete"] * 2
    assert len(columns(found[0])["sizes"]) == len(columns(found[1])["sizes"]) > 2


@pytest.mark.usefixtures("url")
def test_a_compressed_response(spans: Spans, columns: Columns) -> None:
    """The bytes of the wire are those that were sent; the content is that of the events."""
    events = b"".join(FORMATS["openai-chat"].events)
    body = gzip.compress(events)
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, headers=headers, content=iter([body[:40], body[40:]])))
    with httpx2.Client(transport=transport) as http:
        assert list(start_stream(openai.OpenAI(base_url="http://host", api_key="none", http_client=http)))
    (span,) = spans()
    assert only([span])["legato.stream.outcome"] == "complete" and only([span])["legato.stream.wire_bytes"] == len(body)
    assert sum(columns(span)["sizes"]) == sum(len(word.encode()) for word in FORMATS_WORDS)


def test_it_can_be_undone(client: openai.OpenAI, spans: Spans) -> None:
    """Without the instrumentation nothing is recorded, and instrumenting twice records a stream once."""
    legato.uninstrument_openai()
    list(start_stream(client))
    assert spans() == []
    legato.instrument_openai()
    legato.instrument_openai()
    list(start_stream(client))
    assert len(spans()) == 1


@pytest.mark.parametrize("reaches_the_base", [True, False])
def test_a_subclass_with_its_own_request_is_recorded_once(url: str, spans: Spans, reaches_the_base: bool) -> None:
    """As other instrumentations make one: they call the base class, or the function that it had before."""
    legato.uninstrument_openai()
    earlier = openai.OpenAI.request

    class Own(openai.OpenAI):
        def request(self, *given: Any, **more: Any) -> Any:
            return super().request(*given, **more) if reaches_the_base else earlier(self, *given, **more)

    legato.instrument_openai()
    with Own(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        list(start_stream(client))
    assert only(spans())["legato.stream.outcome"] == "complete"
