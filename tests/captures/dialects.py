"""The frames that a provider sends for one streamed response, in its own format. No clock and no socket: `fake_llm` decides when.

A frame's kind is "role" (before the first content), "content" (one piece of text or of a tool's arguments), "end" (the finish reason) or
"tail" (sent directly after the frame before). A tool is called only if the request has tools and no result of a tool.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

INPUT_TOKENS = 12


@dataclass(frozen=True)
class Frame:
    """Bytes to send together, and what the bytes are."""

    kind: str
    data: bytes
    finish: str | None = None


def _word(index: int) -> str:
    return f" w{index:03d}"


def _arguments(chunks: int) -> Iterator[str]:
    """A JSON object in as many pieces as the plan has chunks, the first of them empty (the tool's name comes with it)."""
    yield ""
    yield '{"city":"'
    yield from (f"c{index:02d}" for index in range(2, chunks - 1))
    yield '"}'


def _wants_tool(request: dict[str, Any]) -> bool:
    """Whether the answer is a tool call: the request has tools, and no result of a tool."""
    sent = json.dumps(request.get("messages") or request.get("input") or "")
    results = ('"role": "tool"', '"tool_result"', '"function_call_output"')
    return bool(request.get("tools")) and not any(each in sent for each in results)


def _tool_name(request: dict[str, Any]) -> str:
    tool = request["tools"][0]
    return str(tool.get("function", tool)["name"])


def _sse(value: object, event: str | None = None) -> bytes:
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()


def chat(request: dict[str, Any], response_id: str, chunks: int) -> Iterator[Frame]:
    """OpenAI chat completions: usage is sent only if `stream_options.include_usage` asks for usage."""
    base = {"id": response_id, "object": "chat.completion.chunk", "created": 1_790_000_000, "model": request.get("model")}

    def choice(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return _sse({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    tool = _wants_tool(request)
    yield Frame("role", choice({"role": "assistant", "content": None if tool else ""}))
    if tool:
        for index, part in enumerate(_arguments(chunks)):
            named = {"id": "call_1", "type": "function", "function": {"name": _tool_name(request), "arguments": part}}
            call = named if index == 0 else {"function": {"arguments": part}}
            yield Frame("content", choice({"tool_calls": [{"index": 0, **call}]}))
    else:
        for index in range(chunks):
            yield Frame("content", choice({"content": _word(index)}))
    finish = "tool_calls" if tool else "stop"
    yield Frame("end", choice({}, finish), finish)
    if (request.get("stream_options") or {}).get("include_usage"):
        usage = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": chunks, "total_tokens": INPUT_TOKENS + chunks}
        yield Frame("tail", _sse({**base, "choices": [], "usage": usage}))
    yield Frame("tail", b"data: [DONE]\n\n")


def responses(request: dict[str, Any], response_id: str, chunks: int) -> Iterator[Frame]:
    """OpenAI responses: one message with one text part."""
    number = iter(range(10_000))
    item_id = f"msg_{response_id}"

    def event(name: str, **fields: Any) -> bytes:
        return _sse({"type": name, "sequence_number": next(number), **fields}, name)

    def response(status: str, output: list[Any], usage: dict[str, Any] | None = None) -> dict[str, Any]:
        return {
            "id": response_id,
            "object": "response",
            "created_at": 1_790_000_000,
            "status": status,
            "model": request.get("model"),
            "output": output,
            "usage": usage,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
        }

    def item(status: str, content: list[Any]) -> dict[str, Any]:
        return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}

    at = {"item_id": item_id, "output_index": 0, "content_index": 0}
    yield Frame("role", event("response.created", response=response("in_progress", [])))
    yield Frame("tail", event("response.in_progress", response=response("in_progress", [])))
    yield Frame("tail", event("response.output_item.added", output_index=0, item=item("in_progress", [])))
    empty = {"type": "output_text", "text": "", "annotations": []}
    yield Frame("tail", event("response.content_part.added", **at, part=empty))
    for index in range(chunks):
        yield Frame("content", event("response.output_text.delta", **at, delta=_word(index), logprobs=[]))
    text = "".join(_word(index) for index in range(chunks))
    part = {**empty, "text": text}
    yield Frame("end", event("response.output_text.done", **at, text=text, logprobs=[]), "completed")
    yield Frame("tail", event("response.content_part.done", **at, part=part))
    yield Frame("tail", event("response.output_item.done", output_index=0, item=item("completed", [part])))
    usage = {
        "input_tokens": INPUT_TOKENS,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": chunks,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": INPUT_TOKENS + chunks,
    }
    yield Frame("tail", event("response.completed", response=response("completed", [item("completed", [part])], usage)))


def messages(request: dict[str, Any], response_id: str, chunks: int) -> Iterator[Frame]:
    """Anthropic messages: one block of text or one tool call."""

    def event(name: str, **fields: Any) -> bytes:
        return _sse({"type": name, **fields}, name)

    message: dict[str, Any] = {
        "id": response_id,
        "type": "message",
        "role": "assistant",
        "model": request.get("model"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": INPUT_TOKENS, "output_tokens": 1},
    }
    tool = _wants_tool(request)
    block = {"type": "tool_use", "id": "toolu_1", "name": _tool_name(request), "input": {}} if tool else {"type": "text", "text": ""}
    yield Frame("role", event("message_start", message=message))
    yield Frame("tail", event("content_block_start", index=0, content_block=block))
    yield Frame("tail", event("ping"))
    pieces = _arguments(chunks) if tool else (_word(index) for index in range(chunks))
    for piece in pieces:
        delta = {"type": "input_json_delta", "partial_json": piece} if tool else {"type": "text_delta", "text": piece}
        yield Frame("content", event("content_block_delta", index=0, delta=delta))
    finish = "tool_use" if tool else "end_turn"
    yield Frame("end", event("content_block_stop", index=0), finish)
    last = {"stop_reason": finish, "stop_sequence": None}
    usage = {"input_tokens": INPUT_TOKENS, "output_tokens": chunks}
    yield Frame("tail", event("message_delta", delta=last, usage=usage))
    yield Frame("tail", event("message_stop"))


def ollama(request: dict[str, Any], response_id: str, chunks: int) -> Iterator[Frame]:
    """Ollama chat: one JSON object a line. There is no id and no prelude."""
    base = {"model": request.get("model"), "created_at": "2026-11-23T12:00:00.000000Z"}

    def line(**fields: Any) -> bytes:
        return json.dumps({**base, **fields}).encode() + b"\n"

    for index in range(chunks):
        yield Frame("content", line(message={"role": "assistant", "content": _word(index)}, done=False))
    counts = {"prompt_eval_count": INPUT_TOKENS, "eval_count": chunks, "total_duration": 2_000_000_000}
    yield Frame("end", line(message={"role": "assistant", "content": ""}, done=True, done_reason="stop", **counts), "stop")


def gemini(request: dict[str, Any], response_id: str, chunks: int) -> Iterator[Frame]:
    """Gemini's `streamGenerateContent?alt=sse`: there is no prelude, and the last item has the finish reason and the usage."""

    def item(text: str, **fields: Any) -> bytes:
        candidate = {"content": {"parts": [{"text": text}], "role": "model"}, "index": 0, **fields.pop("candidate", {})}
        return _sse({"candidates": [candidate], "modelVersion": request.get("model"), "responseId": response_id, **fields})

    for index in range(chunks):
        yield Frame("content", item(_word(index)))
    usage = {"promptTokenCount": INPUT_TOKENS, "candidatesTokenCount": chunks, "totalTokenCount": INPUT_TOKENS + chunks}
    yield Frame("end", item("", candidate={"finishReason": "STOP"}, usageMetadata=usage), "STOP")


def cohere(request: dict[str, Any], response_id: str, chunks: int) -> Iterator[Frame]:
    """Cohere's chat, version 2: the first event has the id."""

    def event(name: str, **fields: Any) -> bytes:
        return _sse({"type": name, **fields}, name)

    yield Frame("role", event("message-start", id=response_id, delta={"message": {"role": "assistant", "content": []}}))
    yield Frame("tail", event("content-start", index=0, delta={"message": {"content": {"type": "text", "text": ""}}}))
    for index in range(chunks):
        yield Frame("content", event("content-delta", index=0, delta={"message": {"content": {"text": _word(index)}}}))
    yield Frame("end", event("content-end", index=0), "COMPLETE")
    tokens = {"input_tokens": INPUT_TOKENS, "output_tokens": chunks}
    yield Frame("tail", event("message-end", delta={"finish_reason": "COMPLETE", "usage": {"billed_units": tokens, "tokens": tokens}}))


def bedrock(request: dict[str, Any], response_id: str, chunks: int) -> Iterator[Frame]:
    """AWS Bedrock's `converse-stream`: binary messages with two checksums. There is no id."""

    def event(name: str, **fields: Any) -> bytes:
        headers = b"".join(
            bytes([len(key)]) + key.encode() + b"\x07" + len(value).to_bytes(2, "big") + value.encode()
            for key, value in ((":event-type", name), (":content-type", "application/json"), (":message-type", "event"))
        )
        payload = json.dumps(fields).encode()
        head = (len(headers) + len(payload) + 16).to_bytes(4, "big") + len(headers).to_bytes(4, "big")
        message = head + zlib.crc32(head).to_bytes(4, "big") + headers + payload
        return message + zlib.crc32(message).to_bytes(4, "big")

    yield Frame("role", event("messageStart", role="assistant"))
    for index in range(chunks):
        yield Frame("content", event("contentBlockDelta", contentBlockIndex=0, delta={"text": _word(index)}))
    yield Frame("end", event("contentBlockStop", contentBlockIndex=0), "end_turn")
    yield Frame("tail", event("messageStop", stopReason="end_turn"))
    usage = {"inputTokens": INPUT_TOKENS, "outputTokens": chunks, "totalTokens": INPUT_TOKENS + chunks}
    yield Frame("tail", event("metadata", usage=usage, metrics={"latencyMs": 2000}))


FRAMES: dict[str, Callable[[dict[str, Any], str, int], Iterator[Frame]]] = {
    "chat": chat,
    "responses": responses,
    "messages": messages,
    "ollama": ollama,
    "gemini": gemini,
    "cohere": cohere,
    "bedrock": bedrock,
}
PATHS = {
    "/chat/completions": "chat",
    "/responses": "responses",
    "/messages": "messages",
    "/api/chat": "ollama",
    ":streamGenerateContent": "gemini",
    "/v2/chat": "cohere",
    "/converse-stream": "bedrock",
}
ID_PREFIXES = {
    "chat": "chatcmpl-",
    "responses": "resp_",
    "messages": "msg_",
    "ollama": "ollama-",
    "gemini": "gemini-",
    "cohere": "co-",
    "bedrock": "bedrock-",
}
CONTENT_TYPES = {"ollama": "application/x-ndjson", "bedrock": "application/vnd.amazon.eventstream"}
