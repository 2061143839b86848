"""SSE frames of a replayed stream: OpenAI's `chat.completion.chunk` JSON with filler text, each frame as large as the recorded one.

The JSON envelope is padded to the width of the recorded engine's. The text then has the recorded length too: one byte in the smallest frame
of a stream, and in the others as many bytes more as their frames are larger. Frames are built before the first request, because building
them while streams run would delay the streams. The text is not from any response.
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
# Bytes of text in the last frame. Its envelope differs from the others', so its size does not determine the length of its text.
_LAST_TEXT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Frame:
    """One send: its time in µs after the request's arrival, and its bytes. ``usage`` marks the usage frame."""

    at_us: int
    data: bytes
    usage: bool = False


@dataclass(frozen=True, slots=True)
class Replay:
    """All sends of one stream. ``complete``: the response ends with `[DONE]`; otherwise the connection is broken after the last frame."""

    frames: tuple[Frame, ...]
    complete: bool


def build(stream: Stream, model: str, response_id: str) -> Replay:
    """Return the frames of a recorded stream."""
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
    frames, sent = [], 0
    for index, (at_us, size) in enumerate(stream.content):
        text_bytes = _LAST_TEXT_BYTES if index == last else size - narrowest + 1
        text = "".join(_FILLER[place % len(_FILLER)] for place in range(sent, sent + text_bytes))
        sent += text_bytes
        frames.append(Frame(at_us, _sized(head, _choice({"content": text}, "stop" if index == last else None), size)))
    return frames


def _choice(delta: dict[str, str], finish_reason: str | None = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def _sized(head: dict[str, object], rest: dict[str, object], size: int) -> bytes:
    """Return the event padded to ``size`` bytes; it is larger if its content does not fit."""
    bare = _event({**head, "pad": "", **rest})
    return _event({**head, "pad": "." * max(0, size - len(bare)), **rest})


def _event(body: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode("ascii") + b"\n\n"
