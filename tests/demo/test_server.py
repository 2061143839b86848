"""The replaying server's protocol and pace, tested by plain clients. `bench/fidelity.py` measures its timing."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator

import httpx
import pytest

from demo.plan import Plan
from helpers.servers.replay import read_streams, replay_server

PLAN = Plan(("kv",), 1.0, 4.0, "ab12")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a demo server without the SDK's middleware."""
    with replay_server(PLAN) as chosen:
        yield chosen


def test_concurrent_streams_are_the_recorded_ones(port: int) -> None:
    """All 22 streams arrive complete and in order: the role, the recorded number of content frames, then the usage.

    No frame arrives before its recorded time, and the last ones arrive within a second of theirs in half of the streams or more.
    """
    (recording,) = PLAN.recordings()
    late_s = []
    for stream, arrived in zip(recording.streams, read_streams(port, recording.streams), strict=True):
        frames = [json.loads(frame.removeprefix(b"data: ")) for frame in arrived.frames]
        assert {frame["id"] for frame in frames} == {PLAN.response_id(stream)}
        assert frames[0]["choices"][0]["delta"]["role"] == "assistant" and frames[-1]["usage"]["completion_tokens"]
        content, times_s = frames[1:-1], arrived.times_s[1:-1]
        assert len(content) == len(times_s) == len(stream.content)
        early_s = [at / 1e6 - time_s for (at, _), time_s in zip(stream.content, times_s, strict=True)]
        assert max(early_s) < 0.002
        late_s.append(-early_s[-1])
    assert len(late_s) == 22 and statistics.median(late_s) < 1


def test_a_request_that_cannot_be_replayed_is_rejected(port: int) -> None:
    """The response to an unknown stream, an invalid body or a request without stream=true says what to send."""
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    unknown = httpx.post(url, json={"stream": True}, headers={"X-Request-Id": "unknown"})
    assert unknown.status_code == 404 and "X-Request-Id, for example" in unknown.text
    broken = httpx.post(url, content=b"stream", headers={"X-Request-Id": "unknown"})
    assert broken.status_code == 400 and "not JSON" in broken.text
    whole = httpx.post(url, json={}, headers={"X-Request-Id": "unknown"})
    assert whole.status_code == 400 and "stream=true" in whole.text


def test_a_request_without_a_stream_id_receives_the_next_stream(port: int) -> None:
    """Clients other than the demo's need not send X-Request-Id."""
    with httpx.stream("POST", f"http://127.0.0.1:{port}/v1/chat/completions", json={"stream": True}) as reply:
        assert reply.headers["X-Request-Id"].startswith("kv-")
        assert next(reply.iter_lines()).startswith('data: {"id":"chatcmpl-ab12-kv-')


def test_usage_is_sent_only_on_request(port: int) -> None:
    """Without stream_options.include_usage there is no usage frame, as in OpenAI's API."""
    (recording,) = PLAN.recordings()
    stream = min(recording.streams, key=lambda stream: stream.content[-1][0])
    reply = httpx.post(
        f"http://127.0.0.1:{port}/v1/chat/completions", json={"stream": True}, headers={"X-Request-Id": stream.key}, timeout=30
    )
    assert reply.text.endswith("data: [DONE]\n\n")
    assert '"usage"' not in reply.text
