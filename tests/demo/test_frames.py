"""Replayed frames are what OpenAI's clients expect, as large as the recorded ones, and say nothing that anyone said."""

from __future__ import annotations

import json

import pytest

from demo.frames import build
from demo.plan import Plan


@pytest.mark.parametrize("name", ["calm", "kv", "net"])
def test_every_frame_has_the_recorded_time_and_size(name: str) -> None:
    """Replaying the demo's recordings puts the recorded number of bytes on the wire, frame by frame."""
    plan = Plan((name,), 1.0, None, "ab12")
    (recording,) = plan.recordings()
    for stream in recording.streams:
        frames = build(stream, plan.model(recording), plan.response_id(stream)).frames
        assert [(frame.at_us, len(frame.data)) for frame in frames] == [stream.role, *stream.content, *stream.tail]


def test_frames_follow_the_protocol() -> None:
    """Role first, then text, then a finish reason, the usage, and [DONE]; every frame but the last is JSON of one response."""
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


def test_text_is_filler_in_one_piece() -> None:
    """The frames' texts follow one another in the filler, so that a person who looks at a stream sees words."""
    plan = Plan(("calm",), 1.0, 2.0, "ab12")
    (recording,) = plan.recordings()
    frames = build(recording.streams[0], "m", "id").frames
    texts = [json.loads(frame.data[6:])["choices"][0]["delta"]["content"] for frame in frames[1:-2]]
    assert "".join(texts).startswith("legato is how notes are bound together")
