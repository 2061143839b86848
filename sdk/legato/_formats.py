"""The formats of streamed responses: how one event, a JSON object, is recognised and measured.

A format is recognised by the keys of its events, not by the address or the framing, because gateways move formats elsewhere. Measuring
needs no state besides the ``ResponseInfo``. The framings are in `_sse` and `_lines`, the AI SDK's formats in `_formats_ui`. Wrong types
in an event raise ``AttributeError``, ``TypeError`` or ``ValueError``, which the caller takes for an event without content.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from legato._formats_ui import UI_SIGNS, measure_ui
from legato._response import Measured, ResponseInfo, error_type, json_size, text_size
from legato._timeline import Kind

__all__ = ["JSON_RPC", "OPENAI", "UNKNOWN", "Format", "measure_any", "sniff"]

_TEXT, _ROLE, _HEARTBEAT, _DONE, _USAGE, _TOOL, _REASONING = (
    int(kind) for kind in (Kind.TEXT, Kind.ROLE, Kind.HEARTBEAT, Kind.DONE, Kind.USAGE, Kind.TOOL, Kind.REASONING)
)

_CHOICES_MAX = 128


class Format(NamedTuple):
    """A format: its name, the provider with its own API in it (empty: none), and how an event is measured."""

    name: str
    provider: str
    measure: Callable[[dict[str, Any], ResponseInfo], Measured]


def _measure_openai(event: dict[str, Any], info: ResponseInfo) -> Measured:
    info.expects_end = True
    if error := event.get("error"):
        # OpenRouter reports an error in the middle of a response within a chunk with choices.
        info.error = error_type(error)
    if "choices" in event:
        return _measure_chat(event, info)
    return (0, _DONE, None) if error else _measure_responses(event, info)


def _measure_chat(event: dict[str, Any], info: ResponseInfo) -> Measured:
    info.name(event.get("id"), event.get("model"))
    text = reasoning = tool = 0
    role = finished = False
    for choice in event["choices"] or ():
        delta = choice.get("delta") or {}
        text += text_size(delta.get("content")) + text_size(delta.get("refusal")) + text_size(choice.get("text"))
        reasoning += text_size(delta.get("reasoning_content") or delta.get("reasoning"))
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            tool += text_size(function.get("name")) + text_size(function.get("arguments"))
        role = role or "role" in delta
        finished = _finish_choice(choice, info) or finished
    usage = event.get("usage")
    total = info.use(usage.get("prompt_tokens"), usage.get("completion_tokens")) if isinstance(usage, dict) else None
    kind = _TEXT if text else _REASONING if reasoning else _TOOL if tool else _DONE if finished else _ROLE if role else None
    if kind is None:
        kind = _USAGE if usage else _HEARTBEAT
    return text + reasoning + tool, kind, total


def _finish_choice(choice: dict[str, Any], info: ResponseInfo) -> bool:
    """Keep the choice's finish reason, and whether the choice has begun; return whether it has finished."""
    index, finished = choice.get("index"), info.finish(choice.get("finish_reason"))
    if isinstance(index, int) and 0 <= index < _CHOICES_MAX:
        if finished:
            info.open_choices.discard(index)
        elif choice.get("delta") or choice.get("text"):
            info.open_choices.add(index)
    return finished


def _measure_responses(event: dict[str, Any], info: ResponseInfo) -> Measured:
    """Measure an event of the Responses API. The name of the event determines the kind of a delta."""
    name = str(event.get("type") or "")
    if name.endswith(".delta"):
        size = text_size(event.get("delta"))
        kind = _REASONING if "reasoning" in name else _TEXT if "output_text" in name or "refusal" in name else _TOOL
        return size, kind if size else _HEARTBEAT, None
    if name == "error":
        info.error = error_type({"type": event.get("code")})
        return 0, _DONE, None
    response = event.get("response")
    if not isinstance(response, dict):
        return 0, _ROLE, None
    info.name(response.get("id"), response.get("model"))
    usage = response.get("usage")
    total = info.use(usage.get("input_tokens"), usage.get("output_tokens")) if isinstance(usage, dict) else None
    if name not in _RESPONSE_ENDS:
        return 0, _ROLE, None
    # The end of the Realtime API is one event for all outcomes.
    has_failed = name == "response.failed" or (name == "response.done" and response.get("status") == "failed")
    info.done = not has_failed
    info.finish((response.get("incomplete_details") or {}).get("reason") or response.get("status") or "completed")
    if has_failed:
        info.error = error_type(response.get("error") or (response.get("status_details") or {}).get("error"))
    return 0, _DONE, total


_ANTHROPIC_DELTAS = {
    "text_delta": ("text", _TEXT),
    "thinking_delta": ("thinking", _REASONING),
    "input_json_delta": ("partial_json", _TOOL),
}
_ANTHROPIC_BLOCKS = {"text": ("text", _TEXT), "thinking": ("thinking", _REASONING)}
_ANTHROPIC_SIGNS = frozenset(("message_start", "content_block_start", "content_block_delta", "message_delta", "message_stop"))


def _measure_anthropic(event: dict[str, Any], info: ResponseInfo) -> Measured:
    name = event.get("type")
    info.expects_end = True
    if name == "content_block_delta":
        delta = event["delta"]
        key, kind = _ANTHROPIC_DELTAS.get(str(delta.get("type")), ("", _ROLE))
        size = text_size(delta.get(key))
        return size, kind if size else _HEARTBEAT, None
    if name == "content_block_start":
        block = event["content_block"]
        is_tool = str(block.get("type")).endswith("tool_use")
        key, kind = ("name", _TOOL) if is_tool else _ANTHROPIC_BLOCKS.get(str(block.get("type")), ("", _ROLE))
        size = text_size(block.get(key))
        return size, kind if size else _ROLE, None
    if name == "message_start":
        message = event["message"]
        info.name(message.get("id"), message.get("model"))
        _use_anthropic(message.get("usage"), info)
        return 0, _ROLE, None
    if name == "message_delta":
        _use_anthropic(event.get("usage"), info)
        # Some readers stop here: only `message_stop`, without any data, follows.
        info.done = info.finish((event.get("delta") or {}).get("stop_reason")) or info.done
        return 0, _DONE if info.done else _USAGE, None
    if name == "message_stop":
        info.done = True
        return 0, _DONE, None
    if name == "error":
        info.error = error_type(event.get("error"))
        return 0, _DONE, None
    return 0, _HEARTBEAT if name == "ping" else _ROLE, None


def _use_anthropic(usage: Any, info: ResponseInfo) -> None:
    """Keep the usage. Input tokens from the cache are input tokens, too; the format counts them apart."""
    if not isinstance(usage, dict):
        return
    given = usage.get("input_tokens")
    if isinstance(given, int):
        given += sum(usage.get(key) or 0 for key in ("cache_creation_input_tokens", "cache_read_input_tokens"))
    info.use(given or None, usage.get("output_tokens"))


def _measure_gemini(event: dict[str, Any], info: ResponseInfo) -> Measured:
    info.expects_end = True
    if event.get("error"):
        info.error = error_type(event["error"])
        return 0, _DONE, None
    info.name(event.get("responseId"), event.get("modelVersion"))
    sizes = {_TEXT: 0, _REASONING: 0, _TOOL: 0}
    finished = info.finish((event.get("promptFeedback") or {}).get("blockReason"))
    for candidate in event.get("candidates") or ():
        for part in (candidate.get("content") or {}).get("parts") or ():
            kind, size = _gemini_part(part)
            sizes[kind] += size
        finished = info.finish(candidate.get("finishReason")) or finished
    usage = event.get("usageMetadata")
    total = None
    if isinstance(usage, dict):
        made = [usage[key] for key in ("candidatesTokenCount", "thoughtsTokenCount") if usage.get(key)]
        total = info.use(usage.get("promptTokenCount"), sum(made) if made else None)
    kind = next((kind for kind, size in sizes.items() if size), _DONE if finished else _USAGE if usage else _ROLE)
    return sum(sizes.values()), kind, total


def _gemini_part(part: dict[str, Any]) -> tuple[int, int]:
    """Return the kind and the size of one part of a candidate's content. Data of pictures and sound counts as text, decoded."""
    if "functionCall" in part:
        call = part["functionCall"]
        return _TOOL, text_size(call.get("name")) + json_size(call.get("args"))
    if "executableCode" in part:
        return _TOOL, text_size(part["executableCode"].get("code"))
    if "inlineData" in part:
        return _TEXT, text_size(part["inlineData"].get("data")) * 3 // 4
    return _REASONING if part.get("thought") else _TEXT, text_size(part.get("text"))


def _measure_ollama(event: dict[str, Any], info: ResponseInfo) -> Measured:
    info.expects_end = True
    if event.get("error"):
        info.error = error_type(event["error"])
        return 0, _DONE, None
    info.name(None, event.get("model"))
    message = event.get("message") or {}
    text = text_size(message.get("content")) + text_size(event.get("response"))
    reasoning = text_size(message.get("thinking")) + text_size(event.get("thinking"))
    tool = 0
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        tool += text_size(function.get("name")) + json_size(function.get("arguments"))
    total = None
    if event.get("done"):
        info.done = True
        info.finish(event.get("done_reason"))
        total = info.use(event.get("prompt_eval_count"), event.get("eval_count"))
    kind = _TEXT if text else _REASONING if reasoning else _TOOL if tool else _DONE if info.done else _ROLE
    return text + reasoning + tool, kind, total


_DELTA_KEYS = ("content", "text", "delta", "token")
_TEXT_KEYS = (*_DELTA_KEYS, "chunk", "answer", "completion", "output", "message")


def measure_any(content: Any, payload_bytes: int, info: ResponseInfo) -> Measured:
    """Measure an event of an unknown format: the string under a usual name, else the whole event. Its kind is text: nothing else is known.

    The format has no end mark and no errors that could be recognised, so a stream of it is never cut or failed by its content.
    """
    info.expects_end = False
    if isinstance(content, str):
        return text_size(content), _TEXT, None
    if isinstance(content, dict):
        for key in _TEXT_KEYS:
            if size := text_size(content.get(key)):
                return size, _TEXT, None
        if any(content.get(key) == "" for key in _DELTA_KEYS):
            # The text is where it usually is, and there is none in this event.
            return 0, _HEARTBEAT, None
    return payload_bytes, _TEXT, None


def _measure_rpc(event: dict[str, Any], info: ResponseInfo) -> Measured:
    return 0, _ROLE, None


OPENAI = Format("openai", "openai", _measure_openai)
ANTHROPIC = Format("anthropic", "anthropic", _measure_anthropic)
GEMINI = Format("gemini", "gcp.gemini", _measure_gemini)
OLLAMA = Format("ollama", "ollama", _measure_ollama)
UI = Format("ai-sdk-ui", "", measure_ui)
JSON_RPC = Format("json-rpc", "", _measure_rpc)
"""Not a response of a model: the event streams of the Model Context Protocol, for example."""
UNKNOWN = Format("", "", lambda event, info: measure_any(event, 0, info))


# Events of the Responses API and of the Realtime API. An application's own events may begin with `response.`, too.
_RESPONSE_ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled", "response.done")
_RESPONSE_STATES = frozenset(("response.created", "response.queued", "response.in_progress", *_RESPONSE_ENDS))
_RESPONSE_PART = re.compile(
    r"response\.(?:output_item|content_part|(?:output_)?(?:text|audio)|(?:output_)?audio_transcript|refusal|reasoning\w*|mcp_list_tools"
    r"|custom_tool_call_input|\w+_call(?:_arguments|_code)?)(?:\.\w+){1,2}"
)


def sniff(event: dict[str, Any], *, is_first: bool = True) -> Format | None:
    """Return the format of an event; ``None`` if the event shows none. Only as the ``is_first`` event an error shows one."""
    name = event.get("type")
    if _is_chat(event):
        return OPENAI
    if isinstance(name, str):
        if (name in _RESPONSE_STATES and isinstance(event.get("response"), dict)) or _RESPONSE_PART.fullmatch(name):
            return OPENAI
        if name in _ANTHROPIC_SIGNS:
            return ANTHROPIC
        if name in UI_SIGNS:
            return UI
    if _is_gemini(event):
        return GEMINI
    if isinstance(event.get("done"), bool) and (isinstance(event.get("message"), dict) or isinstance(event.get("response"), str)):
        return OLLAMA
    if "jsonrpc" in event:
        return JSON_RPC
    error = event.get("error")
    # OpenAI's servers and Google's report a failure as the only event. An error of another shape could be anything.
    return OPENAI if is_first and isinstance(error, dict) and "message" in error else None


def _is_chat(event: dict[str, Any]) -> bool:
    """Whether an event has choices of the form of OpenAI's. Without any choice it is one of usage, or of a filter's result."""
    choices = event.get("choices")
    if not choices:
        return "choices" in event and (isinstance(event.get("usage"), dict) or isinstance(event.get("object"), str))
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        return False
    first = choices[0]
    return isinstance(event.get("object"), str) or isinstance(first.get("delta"), dict) or isinstance(first.get("text"), str)


def _is_gemini(event: dict[str, Any]) -> bool:
    if isinstance(event.get("usageMetadata"), dict) or isinstance(event.get("promptFeedback"), dict):
        return True
    candidates = event.get("candidates")
    first = candidates[0] if isinstance(candidates, list) and candidates else None
    return isinstance(first, dict) and (isinstance(first.get("content"), dict) or isinstance(first.get("finishReason"), str))
