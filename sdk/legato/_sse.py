"""Scanner that finds the chunks in the bytes of a server-sent-event stream of OpenAI's APIs.

An event belongs to the read that completed it. Its content is measured and not kept. There are three methods, fastest first: an event
that differs from the previous one only in content without escapes is measured by its length; the first event of that form is found by a
regular expression; all others are parsed as JSON. The three give equal results (a test compares them). Framing follows the WHATWG
specification of server-sent events. No input makes the scanner raise.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from legato._timeline import Kind

__all__ = ["ResponseInfo", "Scanner"]

_PENDING_BYTES_MAX = 1 << 20
# A chat chunk with one choice and text without escapes that is not the last: "delta" has only "content", and there is no usage.
_PLAIN_TEXT = re.compile(
    rb'"choices":\s?\[\{"index":\s?0,\s?"delta":\s?\{"content":\s?"([^"\\]+)"\},\s?"logprobs":\s?null,\s?"finish_reason":\s?null'
    rb'(?:,\s?"[a-z_]+":\s?null)*\}\]'
)
# Content without these bytes has neither the end of the string, nor an escape, nor the end of the event, so its length is its size.
_NOT_PLAIN = b'"\\\r\n'
_LINE_END = re.compile(rb"\r\n|\n|\r")
# The group is atomic: otherwise backtracking could match one CR LF as two line ends.
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r){2}")
_TEXT, _ROLE, _HEARTBEAT, _DONE, _USAGE, _TOOL, _REASONING = (
    int(kind) for kind in (Kind.TEXT, Kind.ROLE, Kind.HEARTBEAT, Kind.DONE, Kind.USAGE, Kind.TOOL, Kind.REASONING)
)


@dataclass(slots=True)
class ResponseInfo:
    """What the events reported about the response: ids, model, finish reasons, usage, end and error."""

    response_id: str = ""
    model: str = ""
    finish_reasons: list[str] = field(default_factory=list)
    input_tokens: int | None = None
    output_tokens: int | None = None
    done: bool = False
    error: str = ""


class Scanner:
    """Chunks by column, filled by ``feed``: times in ns, sizes in bytes, tokens, kinds.

    ``tokens`` is known only if every chunk with content had a cumulative usage. ``yielded`` has the indexes of those events, in order,
    that a client library passes to the application.
    """

    __slots__ = (
        *("kinds", "response", "sizes", "times", "yielded"),
        *("_counted", "_last_tokens", "_pending", "_prefix", "_suffix", "_tokens"),
    )

    def __init__(self) -> None:
        self.times: list[int] = []
        self.sizes: list[int] = []
        self.kinds: list[int] = []
        self.yielded: list[int] = []
        self.response = ResponseInfo()
        self._tokens: list[int] = []
        self._counted = True
        self._last_tokens = 0
        self._pending = b""
        # The bytes before and after the content of the last plain chunk. If the next event has the same ones, only its length is taken.
        self._prefix = self._suffix = b""

    @property
    def tokens(self) -> list[int] | None:
        """Tokens of each chunk; ``None`` if those of any chunk with content are unknown."""
        return self._tokens if self._counted and self._last_tokens else None

    def feed(self, time_ns: int, data: bytes) -> None:
        """Add the bytes of one read."""
        if self._prefix and not self._pending and data.startswith(self._prefix) and data.endswith(self._suffix):
            content = data[len(self._prefix) : -len(self._suffix)]
            if content and len(content.translate(None, _NOT_PLAIN)) == len(content):
                self.yielded.append(len(self.times))
                self.times.append(time_ns)
                self.sizes.append(len(content))
                self.kinds.append(_TEXT)
                return
        if self._pending:
            data = self._pending + data
            self._pending = b""
        if b"\r" in data:
            self._feed_any(time_ns, data)
            return
        events = data.split(b"\n\n")
        rest = events.pop()
        for event in events:
            self._event(time_ns, event)
        if rest:
            self._keep(rest)

    def _feed_any(self, time_ns: int, data: bytes) -> None:
        """Split data with carriage returns into events.

        A CR at the end of a read may be the first half of a CR LF. It ends the line. The LF that may start the next read is then an
        empty line without an event, which adds no chunk.
        """
        at = 0
        for end in _EVENT_END.finditer(data):
            self._event(time_ns, b"\n".join(_LINE_END.split(data[at : end.start()])))
            at = end.end()
        if at < len(data):
            self._keep(data[at:])

    def _keep(self, rest: bytes) -> None:
        # Bounds the memory: an event that never ends would grow without limit. No real chunk is larger than 1 MiB.
        self._pending = rest if len(rest) <= _PENDING_BYTES_MAX else b""

    def _event(self, time_ns: int, event: bytes) -> None:
        payload = event[6:] if event.startswith(b"data: ") and b"\n" not in event else _data_of(event)
        found = _PLAIN_TEXT.search(payload)
        if found is not None and self.response.response_id and b'"usage":{' not in payload and b'"usage": {' not in payload:
            self.yielded.append(len(self.times))
            self._add(time_ns, found.end(1) - found.start(1), _TEXT, None)
            self._remember_frame(event, payload, found)
        elif payload:
            self._payload(time_ns, payload)
        elif event.strip(b"\n"):
            self._add(time_ns, 0, _HEARTBEAT, None)

    def _remember_frame(self, event: bytes, payload: bytes, found: re.Match[bytes]) -> None:
        """Keep the bytes around the content for the fast path, if the event ends with its payload."""
        if event.endswith(payload):
            shift = len(event) - len(payload)
            self._prefix, self._suffix = event[: shift + found.start(1)], event[shift + found.end(1) :] + b"\n\n"

    def _payload(self, time_ns: int, payload: bytes) -> None:
        if payload.startswith(b"[DONE]"):
            self.response.done = True
            self._add(time_ns, 0, _DONE, None)
            return
        try:
            content = json.loads(payload)
        except (ValueError, RecursionError):
            content = None
        self.yielded.append(len(self.times))
        if not isinstance(content, dict):
            # No content can be identified in it.
            self._add(time_ns, 0, _HEARTBEAT, None)
            return
        try:
            size, kind, tokens = self._classify(content)
        except (AttributeError, TypeError, ValueError):
            size, kind, tokens = 0, _HEARTBEAT, None
        self._add(time_ns, size, kind, tokens)

    def _add(self, time_ns: int, size: int, kind: int, tokens: int | None) -> None:
        self.times.append(time_ns)
        self.sizes.append(size)
        self.kinds.append(kind)
        if tokens is None and size:
            self._counted = False
        if self._counted:
            self._tokens.append(tokens or 0)

    def _classify(self, content: dict[str, Any]) -> tuple[int, int, int | None]:
        if "choices" in content:
            return self._chat(content)
        if "error" in content and content["error"]:
            self.response.error = _error_type(content["error"])
            return 0, _DONE, None
        return self._responses(content)

    def _chat(self, content: dict[str, Any]) -> tuple[int, int, int | None]:
        info = self.response
        info.response_id = info.response_id or str(content.get("id") or "")
        info.model = str(content.get("model") or info.model)
        text = reasoning = tool = 0
        role = finished = False
        for choice in content["choices"] or ():
            delta = choice.get("delta") or {}
            text += _size(delta.get("content")) + _size(delta.get("refusal")) + _size(choice.get("text"))
            reasoning += _size(delta.get("reasoning_content") or delta.get("reasoning"))
            for call in delta.get("tool_calls") or ():
                function = call.get("function") or {}
                tool += _size(function.get("name")) + _size(function.get("arguments"))
            role = role or "role" in delta
            if choice.get("finish_reason"):
                finished = True
                info.finish_reasons.append(str(choice["finish_reason"]))
        tokens = self._usage(content.get("usage"), "prompt_tokens", "completion_tokens")
        kind = _TEXT if text else _REASONING if reasoning else _TOOL if tool else _DONE if finished else _ROLE if role else None
        if kind is None:
            kind = _USAGE if content.get("usage") else _HEARTBEAT
        return text + reasoning + tool, kind, tokens

    def _responses(self, content: dict[str, Any]) -> tuple[int, int, int | None]:
        """Classify an event of the Responses API. The name of the event determines the kind of a delta."""
        name = str(content.get("type") or "")
        if name.endswith(".delta"):
            size = _size(content.get("delta"))
            kind = _REASONING if "reasoning" in name else _TEXT if "output_text" in name or "refusal" in name else _TOOL
            return size, kind if size else _HEARTBEAT, None
        response = content.get("response")
        if isinstance(response, dict):
            info = self.response
            info.response_id = info.response_id or str(response.get("id") or "")
            info.model = str(response.get("model") or info.model)
            self._usage(response.get("usage"), "input_tokens", "output_tokens")
            if name in ("response.completed", "response.incomplete", "response.failed", "response.cancelled"):
                info.done = name != "response.failed"
                reason = (response.get("incomplete_details") or {}).get("reason") or str(response.get("status") or "completed")
                info.finish_reasons.append(str(reason))
                if name == "response.failed":
                    info.error = _error_type(response.get("error"))
                return 0, _DONE, None
        return 0, _ROLE, None

    def _usage(self, usage: Any, input_key: str, output_key: str) -> int | None:
        """Store a cumulative usage and return the output tokens added since the previous one; ``None`` if they are unknown."""
        if not isinstance(usage, dict):
            return None
        if isinstance(usage.get(input_key), int):
            self.response.input_tokens = max(0, usage[input_key])
        if not isinstance(usage.get(output_key), int):
            return None
        total = max(0, usage[output_key])
        self.response.output_tokens = total
        since: int = max(0, total - self._last_tokens)
        self._last_tokens = max(total, self._last_tokens)
        return since


def _data_of(event: bytes) -> bytes:
    """Return the data of an event: its ``data`` lines joined, without a byte-order mark, comments and other fields."""
    lines = []
    for line in event.lstrip(b"\n").removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
    return b"\n".join(lines)


def _size(text: Any) -> int:
    """Return the UTF-8 bytes of a string; 0 for anything else. A lone surrogate counts as 3 bytes."""
    if not isinstance(text, str):
        return 0
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _error_type(error: Any) -> str:
    found = (error.get("type") or error.get("code")) if isinstance(error, dict) else None
    return str(found or "error")[:100]
