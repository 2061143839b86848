"""The fake LLM server and the captures that were made with it: the truth is what a client sees, and each capture is whole."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import pathlib
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from captures import vllm_spans
from captures.catalogue import EMITTERS
from captures.dialects import PATHS
from captures.fake_llm import FakeLLM, Plan

FOLDER = pathlib.Path(__file__).parents[1] / "data" / "emitters"
SHORT = Plan(chunks=4, gap_ms=5, stall_after=None)


@pytest.fixture
def llm() -> Iterator[FakeLLM]:
    """A fake server with a short schedule."""
    server = FakeLLM()
    server.plan = SHORT
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def _request(llm: FakeLLM, path: str) -> http.client.HTTPConnection:
    """Return a connection with an open stream; the caller closes it."""
    connection = http.client.HTTPConnection("127.0.0.1", llm.server_port, timeout=10)
    connection.request("POST", f"/v1{path}", json.dumps({"model": "m", "stream": True, "stream_options": {"include_usage": True}}))
    return connection


def _outcomes(llm: FakeLLM) -> list[str]:
    """Return how the streams ended, when the server has noticed all ends: a client may see the last byte before."""
    deadline = time.monotonic() + 10
    while any(truth.outcome == "open" for truth in llm.truth) and time.monotonic() < deadline:
        time.sleep(0.01)
    return [truth.outcome for truth in llm.truth]


def test_each_dialect_sends_what_the_truth_says(llm: FakeLLM) -> None:
    """Every chunk of the plan arrives once and in order, in all formats, and has a time in the truth."""
    for path, connection in [(path, _request(llm, path)) for path in PATHS]:
        with closing(connection), connection.getresponse() as response:
            words = re.findall(r"\bw\d{3}", response.read().decode(errors="replace"))
        assert words[: SHORT.chunks] == ["w000", "w001", "w002", "w003"], path
    assert _outcomes(llm) == ["complete"] * len(PATHS)
    for truth in llm.truth:
        times = [truth.request_start_ns, truth.headers_ns, *truth.content_ns, truth.end_ns]
        assert len(truth.content_ns) == SHORT.chunks and times == sorted(times)
    assert len({truth.response_id for truth in llm.truth}) == len(PATHS)


def test_a_cut_stream_ends_without_its_end(llm: FakeLLM) -> None:
    """The client sees a broken message, the truth says "cut" and has the chunks before the cut."""
    llm.plan = Plan(chunks=4, gap_ms=5, stall_after=None, cut_after=2)
    with closing(_request(llm, "/chat/completions")) as connection, connection.getresponse() as response:
        with pytest.raises(http.client.IncompleteRead):
            response.read()
    assert (_outcomes(llm), len(llm.truth[0].content_ns), llm.truth[0].finish) == (["cut"], 2, None)


def test_a_client_that_leaves_is_noticed_in_a_pause(llm: FakeLLM) -> None:
    """The truth says "client_closed" although the next chunk is far away."""
    llm.plan = Plan(chunks=2, stall_after=1, stall_ms=60_000)
    with closing(_request(llm, "/chat/completions")) as connection, connection.getresponse() as response:
        response.readline()
    assert _outcomes(llm) == ["client_closed"]


def test_captures_are_whole_and_listed() -> None:
    """Each file is of a known emitter and scenario, stands in the README, and has streams and readable spans."""
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    files = sorted(FOLDER.glob("*.json"))
    assert len(files) > 80
    for path in files:
        held = json.loads(path.read_text(encoding="utf-8"))
        scenarios = vllm_spans.SCENARIOS if held["emitter"] == "vllm" else EMITTERS[held["emitter"]].scenarios
        assert path.name == f"{held['emitter']}-{held['scenario']}.json" and held["scenario"] in scenarios, path.name
        assert held["emitter"].removesuffix("-json").removesuffix("-grpc").removesuffix("-logfire") in page, path.name
        assert held["truth"] and held["packages"], path.name
        assert sum(map(_spans, held["requests"])) > 0 or not _has_traces(held["requests"]), path.name


def _has_traces(requests: list[dict[str, str]]) -> bool:
    return any(each["path"].endswith("/v1/traces") for each in requests)


def _spans(request: dict[str, str]) -> int:
    """Count the spans of a request of traces, with the reference decoder."""
    if not request["path"].endswith("/v1/traces"):
        return 0
    body = base64.b64decode(request["body"], validate=True)
    body = gzip.decompress(body) if request["content_encoding"] == "gzip" else body
    if "json" in request["content_type"]:
        return sum(len(scope["spans"]) for resource in json.loads(body)["resourceSpans"] for scope in resource["scopeSpans"])
    message = ExportTraceServiceRequest.FromString(body)
    return sum(len(scope.spans) for resource in message.resource_spans for scope in resource.scope_spans)
