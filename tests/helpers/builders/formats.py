"""The bytes of one streamed response in each format that the SDK knows, as its servers write them: a short answer in events.

Every response is the words of ``WORDS``, after a prelude and before an end. ``unfinished`` leaves out the end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

__all__ = ["FORMATS", "WORDS", "Wire", "gemini_array"]

WORDS = ["Zebra", " crossing", " éclair", ' "quoted"', " done"]


@dataclass(frozen=True)
class Wire:
    """A response: its events as bytes, each of the ones with a word after ``before`` others, and what the SDK should find.

    ``found``: model, response id, finish reason, input and output tokens, provider. ``has_end``: it has an end mark.
    """

    content_type: str
    prelude: tuple[bytes, ...]
    words: tuple[bytes, ...]
    end: tuple[bytes, ...]
    found: tuple[str, str, str, int | None, int | None, str]
    has_end: bool = True

    @property
    def events(self) -> tuple[bytes, ...]:
        """All events in order."""
        return (*self.prelude, *self.words, *self.end)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _sse(value: Any, name: str = "") -> bytes:
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + (value if isinstance(value, bytes) else _json(value)) + b"\n\n"


def _chat(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return _sse({"id": "c-1", "object": "chat.completion.chunk", "model": "m-1", "choices": [choice], **more})


def _claude(name: str, **more: Any) -> bytes:
    return _sse({"type": name, **more}, name)


def _gemini(parts: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    candidate = {"content": {"parts": parts, "role": "model"}, "index": 0}
    usage = {"promptTokenCount": 7, "totalTokenCount": 12}
    if "finishReason" in more:
        candidate["finishReason"] = more.pop("finishReason")
        usage["candidatesTokenCount"] = 5
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m-1", "responseId": "g-1"}


def _ollama(content: str, **more: Any) -> bytes:
    message = {"role": "assistant", "content": content}
    return _json({"model": "m-1", "created_at": "2026-11-23T12:00:00Z", "message": message, "done": False, **more}) + b"\n"


_CLAUDE_MESSAGE: dict[str, Any] = {
    "id": "msg-1",
    "type": "message",
    "role": "assistant",
    "model": "m-1",
    "content": [],
    "stop_reason": None,
}
_RESPONSE: dict[str, Any] = {"id": "resp-1", "object": "response", "model": "m-1", "status": "in_progress", "output": []}
_OLLAMA_END = {"done_reason": "stop", "total_duration": 1, "prompt_eval_count": 7, "eval_count": 5}
SSE, NDJSON = "text/event-stream", "application/x-ndjson"

FORMATS: dict[str, Wire] = {
    "openai-chat": Wire(
        SSE,
        (_chat({"role": "assistant", "content": ""}),),
        tuple(_chat({"content": word}) for word in WORDS),
        (
            _chat({}, "stop"),
            _sse({"id": "c-1", "model": "m-1", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}),
            _sse(b"[DONE]"),
        ),
        ("m-1", "c-1", "stop", 7, 5, "openai"),
    ),
    "openai-responses": Wire(
        SSE,
        (_claude("response.created", response=_RESPONSE),),
        tuple(_claude("response.output_text.delta", item_id="i", output_index=0, delta=word) for word in WORDS),
        (_claude("response.completed", response=_RESPONSE | {"status": "completed", "usage": {"input_tokens": 7, "output_tokens": 5}}),),
        ("m-1", "resp-1", "completed", 7, 5, "openai"),
    ),
    "anthropic": Wire(
        SSE,
        (
            _claude(
                "message_start", message=_CLAUDE_MESSAGE | {"usage": {"input_tokens": 4, "cache_read_input_tokens": 3, "output_tokens": 1}}
            ),
            _claude("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            _claude("ping"),
        ),
        tuple(_claude("content_block_delta", index=0, delta={"type": "text_delta", "text": word}) for word in WORDS),
        (
            _claude("content_block_stop", index=0),
            _claude("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 5}),
            _claude("message_stop"),
        ),
        ("m-1", "msg-1", "end_turn", 7, 5, "anthropic"),
    ),
    "gemini": Wire(
        SSE,
        (),
        tuple(_sse(_gemini([{"text": word}])) for word in WORDS),
        (_sse(_gemini([{"text": ""}], finishReason="STOP")),),
        ("m-1", "g-1", "STOP", 7, 5, "gcp.gemini"),
    ),
    "ollama": Wire(
        NDJSON,
        (),
        tuple(_ollama(word) for word in WORDS),
        (_ollama("", done=True, **_OLLAMA_END),),
        ("m-1", "", "stop", 7, 5, "ollama"),
    ),
    "ollama-generate": Wire(
        NDJSON,
        (),
        tuple(_json({"model": "m-1", "response": word, "done": False}) + b"\n" for word in WORDS),
        (_json({"model": "m-1", "response": "", "done": True} | _OLLAMA_END) + b"\n",),
        ("m-1", "", "stop", 7, 5, "ollama"),
    ),
    "ai-sdk-ui": Wire(
        SSE,
        (_sse({"type": "start", "messageId": "ui-1"}), _sse({"type": "start-step"}), _sse({"type": "text-start", "id": "0"})),
        tuple(_sse({"type": "text-delta", "id": "0", "delta": word}) for word in WORDS),
        (_sse({"type": "text-end", "id": "0"}), _sse({"type": "finish-step"}), _sse({"type": "finish"}), _sse(b"[DONE]")),
        ("", "ui-1", "", None, None, ""),
    ),
    "ai-sdk-data": Wire(
        "text/plain; charset=utf-8",
        (b'f:{"messageId":"ui-1"}\n',),
        tuple(b"0:" + _json(word) + b"\n" for word in WORDS),
        (b'd:{"finishReason":"stop","usage":{"promptTokens":7,"completionTokens":5}}\n',),
        ("", "ui-1", "stop", 7, 5, ""),
    ),
    "own-json": Wire(
        SSE, (), tuple(_sse({"n": n, "content": word}) for n, word in enumerate(WORDS)), (), ("", "", "", None, None, ""), has_end=False
    ),
    "own-text": Wire(SSE, (b": hello\n\n",), tuple(_sse(word.encode()) for word in WORDS), (), ("", "", "", None, None, ""), has_end=False),
    "own-lines": Wire(NDJSON, (), tuple(_json({"text": word}) + b"\n" for word in WORDS), (), ("", "", "", None, None, ""), has_end=False),
}
"""One response by format."""


def gemini_array() -> list[bytes]:
    """The Gemini response as one JSON array, which its API sends without ``alt=sse``: one piece per event."""
    events = [each.removeprefix(b"data: ").strip() for each in FORMATS["gemini"].events]
    return [(b"[" if not number else b"\n,\r\n") + event for number, event in enumerate(events)] + [b"\n]\n"]
