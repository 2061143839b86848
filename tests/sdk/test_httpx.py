"""`instrument_httpx` with real clients and a real server: every format, ends, failures, the trace, and one row a stream."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx2
import openai
import pytest
from opentelemetry.sdk.trace import ReadableSpan

import legato
from helpers.builders.completions import completions_server
from helpers.builders.formats import FORMATS, WORDS
from helpers.servers.formats import formats_app
from helpers.servers.serving import served
from helpers.servers.waiting import until
from legato._hosts import provider_at
from legato._request import asked

Spans = Callable[[], list[ReadableSpan]]
Columns = Callable[[ReadableSpan], dict[str, Any]]
CONTENT = sum(len(word.encode()) for word in WORDS)
GEMINI = "/v1beta/models/gemini-x:streamGenerateContent"
seen: list[dict[str, str]] = []


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of every format, with the instrumentation installed."""
    legato.instrument_httpx()
    legato.instrument_httpx()
    with served(formats_app({"/v1/chat/completions": "openai-chat", GEMINI: "array"}, seen)) as base:
        yield base
    legato.uninstrument_httpx()


def of(spans: list[ReadableSpan]) -> dict[str, Any]:
    """Return the attributes of the only span."""
    (span,) = spans
    return dict(span.attributes or {})


def ask(base: str, path: str, package: Any = httpx, **more: Any) -> list[str]:
    """Ask for a stream and return its lines."""
    with package.stream("POST", f"{base}/{path}", json={"model": "asked", "stream": True}, **more) as response:
        return list(response.iter_lines())


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format(url: str, spans: Spans, columns: Columns, name: str) -> None:
    """The content, the model that was asked for, and the facts of the events; the start before the headers, the end with the last byte."""
    ask(url, name)
    (span,) = spans()
    found, chunks = of([span]), columns(span)
    model, response_id, _, _, tokens, provider = FORMATS[name].found
    assert (found["legato.stream.outcome"], found["legato.stream.vantage"], found["gen_ai.request.model"]) == (
        "complete",
        "client",
        "asked",
    )
    assert sum(chunks["sizes"]) == CONTENT and found["legato.stream.transport"] == "http/1.1"
    given = (found.get("gen_ai.response.model", ""), found.get("gen_ai.response.id", ""), found.get("gen_ai.provider.name", ""))
    assert given == (model, response_id, provider) and found.get("gen_ai.usage.output_tokens") == tokens
    assert 0 < found["legato.stream.ttfb"] <= found["gen_ai.response.time_to_first_chunk"]
    assert found["client.port"] > 0 and found["server.address"] == "127.0.0.1"
    assert span.end_time is not None and span.start_time is not None
    assert abs((span.end_time - span.start_time) // 1000 - chunks["times_us"][-1]) <= 1


@pytest.mark.parametrize("own", [{}, {"tracestate": "own=1"}, {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}])
def test_a_request_that_is_sent_again_carries_its_own_trace(url: str, spans: Spans, own: dict[str, str]) -> None:
    """Not that of the first stream, which the request would keep. The application's headers stay as they are."""
    with httpx.Client() as client:
        request = client.build_request("POST", f"{url}/anthropic", json={"stream": True}, headers=own)
        before, sent = dict(request.headers), []
        for _ in range(2):
            client.send(request, stream=True).read()
            sent.append(seen[-1]["traceparent"])
            assert dict(request.headers) == before
    carried = [f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}" for span in spans() if span.context]
    assert [each[:52] in given for each, given in zip(carried, sent, strict=True)] == ["traceparent" not in own] * 2


def test_geminis_array_and_the_model_in_its_address(url: str, spans: Spans, columns: Columns) -> None:
    """Without server-sent events, and without a model in the body."""
    with httpx.stream("POST", url + GEMINI, json={"contents": []}) as response:
        response.read()
    (span,) = spans()
    assert sum(columns(span)["sizes"]) == CONTENT
    assert (of([span])["gen_ai.request.model"], of([span])["legato.stream.outcome"]) == ("gemini-x", "complete")


def test_a_compressed_body_and_the_newer_package(url: str, spans: Spans, columns: Columns) -> None:
    """The client decompresses what is recorded as it was on the wire."""
    assert any("crossing" in line for line in ask(url, "anthropic?gzip", httpx2))
    (span,) = spans()
    assert sum(columns(span)["sizes"]) == CONTENT and of([span])["legato.stream.outcome"] == "complete"


@pytest.mark.parametrize(
    ("query", "outcome", "error"),
    [
        ("cut", "upstream_error", "stream_truncated"),
        ("break", "upstream_error", "httpx.RemoteProtocolError"),
        ("status=503", "upstream_error", "http_503"),
    ],
)
def test_failures(url: str, spans: Spans, query: str, outcome: str, error: str) -> None:
    """A body that was cut, a connection that broke, and a server that could not answer."""
    try:
        ask(url, f"anthropic?{query}")
    except httpx.RemoteProtocolError:
        assert query == "break"
    found = of(spans())
    assert (found["legato.stream.outcome"], found["error.type"]) == (outcome, error)
    # By the number of chunks the receiver knows that the timeline is empty.
    assert (found["legato.stream.chunks"] == 0) == ("legato.stream.timeline" not in found) == (query == "status=503")


def test_time_outs(url: str, spans: Spans) -> None:
    """In the stream, with its open gap, and before the headers, from a host that does not answer."""
    with pytest.raises(httpx.ReadTimeout):
        ask(url, "anthropic?pause=3", timeout=httpx.Timeout(10, read=0.8))
    found = of(spans())
    assert found["legato.stream.outcome"] == "timeout" and found["error.type"] == "httpx.ReadTimeout"
    with pytest.raises(httpx.ConnectError):
        ask("http://127.0.0.1:9", "v1/messages")
    assert of(spans()[1:])["error.type"] == "httpx.ConnectError"


def test_what_is_no_stream_has_no_row(url: str, spans: Spans) -> None:
    """A response that is read at once, an error of the caller, a file, and a request for notifications."""
    httpx.post(f"{url}/anthropic", json={"stream": True})
    ask(url, "anthropic?status=404")
    with httpx.stream("GET", f"{url}/words") as response:
        response.read()
    with httpx.stream("GET", f"{url}/own-text") as response:
        response.read()
    assert spans() == []


def test_leaving_is_a_cancel_and_stopping_at_the_end_mark_is_none(url: str, spans: Spans) -> None:
    """Many clients stop reading at [DONE] and never see the end of the body."""
    for query, stop in (("?pause=1", "assistant"), ("", "[DONE]")):
        with httpx.stream("POST", f"{url}/openai-chat{query}", json={"stream": True}) as response:
            for line in response.iter_lines():
                if stop in line:
                    break
    assert [(span.attributes or {})["legato.stream.outcome"] for span in spans()] == ["client_cancel", "complete"]


def test_a_reader_that_stops_at_the_end_mark_and_closes_nothing(url: str, spans: Spans) -> None:
    """Some libraries keep the response: the stream ends without them, soon after its last byte."""
    with httpx.Client() as client:
        request = client.build_request("POST", f"{url}/openai-chat", json={"stream": True})
        response = client.send(request, stream=True)
        lines = response.iter_lines()
        assert any("[DONE]" in line for line in lines)
        until(lambda: spans(), 20)
        assert not response.is_closed
        response.close()
    found = of(spans())
    assert found["legato.stream.outcome"] == "complete" and found["legato.stream.chunks"] == len(FORMATS["openai-chat"].events)


def test_the_request_carries_the_trace_context(url: str, spans: Spans) -> None:
    """If it asks for a stream and has none; a request for anything else is sent as it is."""
    ask(url, "anthropic")
    (span,) = spans()
    assert span.context is not None and f"{span.context.span_id:016x}" in seen[-1]["traceparent"]
    own = f"00-{7:032x}-{7:016x}-01"
    ask(url, "anthropic", headers={"traceparent": own})
    assert seen[-1]["traceparent"] == own
    with httpx.stream("GET", f"{url}/own-text") as response:
        response.read()
    assert "traceparent" not in seen[-1]


def test_asynchronous_streams(url: str, spans: Spans, columns: Columns) -> None:
    """To the end, cancelled by the task, and with a loop that something blocks."""

    async def read(path: str, began: asyncio.Event) -> None:
        async with httpx.AsyncClient() as client, client.stream("POST", f"{url}/{path}", json={"stream": True}) as response:
            async for _ in response.aiter_bytes():
                began.set()

    async def begun(path: str) -> asyncio.Task[None]:
        began = asyncio.Event()
        task = asyncio.create_task(read(path, began))
        await began.wait()
        return task

    async def run() -> None:
        await read("anthropic", asyncio.Event())
        task = await begun("anthropic?pause=5")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        task = await begun("own-text?pause=0.1")
        time.sleep(0.5)
        await task

    asyncio.run(run())
    found = spans()
    assert [(span.attributes or {})["legato.stream.outcome"] for span in found] == ["complete", "client_cancel", "complete"]
    assert sum(columns(found[2])["holds"]) * 0.064 > 400


@pytest.mark.parametrize("first", ["openai", "httpx"])
def test_one_row_for_a_stream_of_openai(spans: Spans, first: str) -> None:
    """Whichever instrumentation was installed first."""
    installs = [legato.instrument_openai, legato.instrument_httpx]
    legato.uninstrument_httpx()
    for install in installs if first == "openai" else reversed(installs):
        install()
    with completions_server() as base, openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=60) as client:
        list(client.chat.completions.create(model="normal", messages=[], stream=True))
        legato.uninstrument_openai()
        list(client.chat.completions.create(model="normal", messages=[], stream=True))
    both = [dict(span.attributes or {}) for span in spans()]
    assert [(each["gen_ai.response.id"], each["gen_ai.provider.name"]) for each in both] == [("chatcmpl-test", "openai")] * 2
    assert both[0]["legato.stream.chunks"] == both[1]["legato.stream.chunks"]


def test_it_can_be_undone(url: str, spans: Spans) -> None:
    """Without the instrumentation nothing is recorded."""
    legato.uninstrument_httpx()
    ask(url, "anthropic")
    legato.instrument_httpx()
    assert spans() == []


def test_everything_at_once(url: str, spans: Spans) -> None:
    """`legato.instrument()` names what it instrumented, and `uninstrument` undoes all of it."""
    assert {"openai", "httpx", "httpx2"} <= set(legato.instrument())
    ask(url, "anthropic")
    legato.uninstrument()
    ask(url, "anthropic")
    legato.instrument_httpx()
    assert len(spans()) == 1


@pytest.mark.parametrize(
    ("path", "content", "expected"),
    [
        ("/v1/messages", b'{"model":"m","stream":true}', ("m", True)),
        ("/v1/messages", b'{"model":7,"stream":"yes"}', ("", False)),
        ("/v1/messages", b'{"model":', ("", False)),
        ("/model/claude/converse-stream", b"", ("claude", True)),
        ("/model/a.claude-v2:0/invoke-with-response-stream", b"", ("a.claude-v2:0", True)),
        ("/model/arn%3Aaws%3Abedrock%3Aprofile%2Fp1/converse-stream", b"", ("arn:aws:bedrock:profile/p1", True)),
        ("/model/arn:aws:bedrock:profile/p1/converse-stream", b"", ("arn:aws:bedrock:profile/p1", True)),
        ("/v1beta/models/g-1:generateContent", b"{}", ("g-1", False)),
        ("/v1beta/models/g-1:streamGenerateContent", b'{"model":"other"}', ("g-1", True)),
        ("/hf/models/org/name/v1/chat/completions", b'{"model":"org/name","stream":true}', ("org/name", True)),
        ("/v2/models/m/generate_stream", b'{"stream":true}', ("m", True)),
        ("/x", json.dumps({"messages": ['"model": "wrong", "stream": true' * 9000], "model": "m", "stream": True}).encode(), ("m", True)),
        ("/x", json.dumps({"messages": ['"model": "wrong", "stream": true' * 9000]}).encode(), ("", False)),
    ],
)
def test_what_a_request_asks_for(path: str, content: bytes, expected: tuple[str, bool]) -> None:
    """From its body, which may be large, or its address; quoted text in a prompt is not taken for it."""
    assert asked(path, content) == expected


@pytest.mark.parametrize(
    ("host", "provider"),
    [
        ("api.anthropic.com", "anthropic"),
        ("my.openai.azure.com", "azure.ai.openai"),
        ("eu-aiplatform.googleapis.com", "gcp.vertex_ai"),
        ("bedrock-runtime.us-east-1.amazonaws.com", "aws.bedrock"),
        ("localhost", ""),
    ],
)
def test_providers_by_host(host: str, provider: str) -> None:
    """As the semantic conventions name them."""
    assert provider_at(host) == provider


def test_without_httpx() -> None:
    """The error names what to install."""
    script = "import importlib.util as u\nu.find_spec = lambda name, package=None: None\nimport legato\nlegato.instrument_httpx()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "pip install httpx" in done.stderr
