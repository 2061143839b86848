"""Replayed frames follow OpenAI's protocol, have the recorded sizes and times, and contain only filler text."""

from __future__ import annotations

import json

import pytest

from demo.frames import build
from demo.plan import Plan


@pytest.mark.parametrize("name", ["calm", "kv", "net"])
def test_every_frame_has_the_recorded_time_and_size(name: str) -> None:
    """For each of the demo's recordings, every frame has the recorded time and number of bytes."""
    plan = Plan((name,), 1.0, None, "ab12")
    (recording,) = plan.recordings()
    for stream in recording.streams:
        frames = build(stream, plan.model(recording), plan.response_id(stream)).frames
        assert [(frame.at_us, len(frame.data)) for frame in frames] == [stream.role, *stream.content, *stream.tail]


def test_frames_follow_the_protocol() -> None:
    """A role frame, text frames, a finish reason, the usage and [DONE], in this order; all but the last are JSON with one response id."""
    plan = Plan(("calm",), 1.0, 2.0, "ab12")
    (recording,) = plan.recordings()
    stream = recording.streams[0]
    frames = build(stream, plan.model(recording), plan.response_id(stream)).frames
    assert frames[-1].data == b"data: [DONE]\n\n"
    bodies = [json.loads(frame.data.removeprefix(b"data: ")) for frame in frames[:-1]]
    assert {body["id"] for body in bodies} == {plan.response_id(stream)}
    assert bodies[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(body["choices"][0]["delta"]["content"] for body in bodies[1:-1])
    assert [body["choices"][0]["finish_reason"] for body in bodies[:-1]] == [None] * (len(bodies) - 2) + ["stop"]
    assert bodies[-1]["usage"]["completion_tokens"] == len(stream.content)
    assert [frame.usage for frame in frames] == [False] * (len(frames) - 2) + [True, False]


def test_the_frames_text_is_consecutive_filler() -> None:
    """The texts of the frames concatenate to the filler text, so a stream reads as words."""
    plan = Plan(("calm",), 1.0, 2.0, "ab12")
    (recording,) = plan.recordings()
    frames = build(recording.streams[0], "m", "id").frames
    texts = [json.loads(frame.data[6:])["choices"][0]["delta"]["content"] for frame in frames[1:-2]]
    assert "".join(texts).startswith("legato is how notes are bound together")
