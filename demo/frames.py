"""Builds a stream's SSE frames: OpenAI's `chat.completion.chunk` JSON with filler text, each frame as large as the recorded one.

One idea: the envelope is padded to the width that the recorded engine's had, so that the text in each frame has the
recorded length too: one byte in a stream's smallest frame, and as many more as the others are larger. Frames are built before the first
request: building them while streams run would make them late. No text here was ever said by anyone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from demo.recording import Stream

__all__ = ["Frame", "Replay", "build"]

_FILLER = (
    "legato is how notes are bound together so that none is heard to begin, and a stream of words should be heard like that: one after "
    "another, evenly, with no breath held between them. this is filler, cut to the sizes that a real server once sent; it says nothing. "
)
_CREATED = 1_700_000_000
# Bytes of text that a last frame is given when its own size does not say: its envelope differs from the others'.
_LAST_TEXT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Frame:
    """One send: when, counted from the request's arrival, and what."""

    at_us: int
    data: bytes
    usage: bool = False


@dataclass(frozen=True, slots=True)
class Replay:
    """All sends of one stream, and how the response ends: with `[DONE]`, or by the connection breaking off."""

    frames: tuple[Frame, ...]
    complete: bool


def build(stream: Stream, model: str, response_id: str) -> Replay:
    """The frames of a recorded stream."""
    head = {"id": response_id, "object": "chat.completion.chunk", "created": _CREATED, "model": model}
    frames = [Frame(stream.role[0], _sized(head, _choice({"role": "assistant", "content": ""}), stream.role[1]))]
    frames += _content(stream, head)
    if stream.done:
        (usage_us, usage_bytes), (done_us, _) = stream.tail
        total = stream.prompt_tokens + stream.completion_tokens
        usage = {"prompt_tokens": stream.prompt_tokens, "completion_tokens": stream.completion_tokens, "total_tokens": total}
        frames.append(Frame(usage_us, _sized(head, {"choices": [], "usage": usage}, usage_bytes), usage=True))
        frames.append(Frame(done_us, b"data: [DONE]\n\n"))
    return Replay(tuple(frames), stream.done)


def _content(stream: Stream, head: dict[str, object]) -> list[Frame]:
    last = len(stream.content) - 1 if stream.done else len(stream.content)
    narrowest = min((size for _, size in stream.content[:last]), default=stream.content[0][1])
    frames, said = [], 0
    for index, (at_us, size) in enumerate(stream.content):
        text_bytes = _LAST_TEXT_BYTES if index == last else size - narrowest + 1
        text = "".join(_FILLER[place % len(_FILLER)] for place in range(said, said + text_bytes))
        said += text_bytes
        frames.append(Frame(at_us, _sized(head, _choice({"content": text}, "stop" if index == last else None), size)))
    return frames


def _choice(delta: dict[str, str], finish_reason: str | None = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def _sized(head: dict[str, object], rest: dict[str, object], size: int) -> bytes:
    """The event, padded to ``size`` bytes; larger where its content does not fit."""
    bare = _event({**head, "pad": "", **rest})
    return _event({**head, "pad": "." * max(0, size - len(bare)), **rest})


def _event(body: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode("ascii") + b"\n\n"
