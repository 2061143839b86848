"""The two formats of the AI SDK between a server and its page: the UI message stream, and the older data stream of lines ``0:"text"``.

The UI message stream consists of JSON objects with a ``type``; the data stream has a one-letter code for each part.
"""

from __future__ import annotations

from typing import Any

from legato._response import Measured, ResponseInfo, json_size, text_size
from legato._timeline import Kind

__all__ = ["UI_SIGNS", "measure_part", "measure_ui"]

_TEXT, _ROLE, _HEARTBEAT, _DONE, _TOOL, _REASONING = (
    int(kind) for kind in (Kind.TEXT, Kind.ROLE, Kind.HEARTBEAT, Kind.DONE, Kind.TOOL, Kind.REASONING)
)
UI_SIGNS = frozenset(
    (
        *("text-start", "text-delta", "text-end", "reasoning-start", "reasoning-delta", "reasoning-end", "start-step", "finish-step"),
        *("tool-input-start", "tool-input-delta", "tool-input-available", "tool-output-available", "source-url", "message-metadata"),
    )
)
"""Types that no other format has. ``start``, ``finish`` and ``error`` occur in formats of applications, too."""


def measure_ui(event: dict[str, Any], info: ResponseInfo) -> Measured:
    """Measure an event of the UI message stream. Only a stream that was opened with ``start`` has to be closed with ``finish``."""
    name = event.get("type")
    if name in ("text-delta", "reasoning-delta"):
        size = text_size(event.get("delta"))
        return size, (_TEXT if name == "text-delta" else _REASONING) if size else _HEARTBEAT, None
    if name == "tool-input-start":
        size = text_size(event.get("toolName"))
        return size, _TOOL if size else _ROLE, None
    if name == "tool-input-delta":
        info.has_tool_input = True
        size = text_size(event.get("inputTextDelta"))
        return size, _TOOL if size else _HEARTBEAT, None
    if name == "tool-input-available":
        # After deltas this event repeats what they contained.
        size = 0 if info.has_tool_input else json_size(event.get("input"))
        info.has_tool_input = False
        return size, _TOOL if size else _ROLE, None
    if name == "start":
        info.name(event.get("messageId"))
        info.expects_end = True
    elif name == "finish":
        info.done = True
        info.finish(event.get("finishReason"))
        return 0, _DONE, None
    elif name == "abort":
        info.cancelled = True
        return 0, _DONE, None
    elif name == "error":
        info.error = "error"
        return 0, _DONE, None
    return 0, _ROLE, None


def measure_part(code: str, value: Any, info: ResponseInfo) -> Measured:
    """Measure a part of the data stream: its code and its JSON value."""
    if code in "0g":
        size = text_size(value)
        return size, (_TEXT if code == "0" else _REASONING) if size else _HEARTBEAT, None
    if code in "9bc":
        return _measure_call(code, value, info)
    if code == "3":
        info.error = "error"
        return 0, _DONE, None
    if code == "f":
        info.expects_end = True
        info.name(value.get("messageId"))
    elif code in "de":
        usage = value.get("usage") or {}
        info.done = info.done or code == "d"
        finished = code == "d" and info.finish(value.get("finishReason"))
        info.use(usage.get("promptTokens"), usage.get("completionTokens"))
        return 0, _DONE if finished else _ROLE, None
    return 0, _ROLE, None


def _measure_call(code: str, value: Any, info: ResponseInfo) -> Measured:
    if code == "b":
        size = text_size(value.get("toolName"))
    elif code == "c":
        info.has_tool_input = True
        size = text_size(value.get("argsTextDelta"))
    else:
        size = 0 if info.has_tool_input else text_size(value.get("toolName")) + json_size(value.get("args"))
        info.has_tool_input = False
    return size, _TOOL if size else _ROLE, None
