"""What a response's events reported about it as a whole, and the helpers with which every format reads an event.

No text is kept: a content string is measured, and of an error only its type or code.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from legato._pace import breathe

__all__ = ["Elided", "Measured", "ResponseInfo", "count_of", "encodable", "error_type", "json_size", "text_size"]

Measured = tuple[int, int, int | None]
"""Of one event: bytes of content, kind, and the output tokens so far; ``None`` if the event has no such count."""
# A body may have a response after a response for days.
_REASONS_MAX = 64
_NAME_CHARS_MAX = 256
# The timeline and the store have counts of 32 bits. OTLP's have 64, and a larger one makes the whole export fail.
_COUNT_MAX = 2**32 - 1
_CODE = re.compile(r"[\w.:/-]{1,100}", re.ASCII)


class Elided(str):
    """Stands for a string of which only the length is known. Its text is empty."""

    length = 0

    def __len__(self) -> int:
        return self.length

    def __str__(self) -> str:
        return ""


@dataclass(slots=True)
class ResponseInfo:
    """What the events reported about the response: ids, model, finish reasons, usage, end and error.

    ``expects_end``: the format has an end mark, so a body without one was cut. ``done``: the end mark was there. ``cancelled``: the
    response reported that its reader stopped it. ``has_tool_input``: a tool's input was streamed in parts. ``is_incomplete``: an event or
    a read is not known, and no content was read after it, so a missing end mark means nothing. ``finished``: a finish reason was given, and
    no content followed; then ``done`` is reset, too. ``open_choices``: indexes of OpenAI's choices that have begun and not finished.
    """

    response_id: str = ""
    model: str = ""
    finish_reasons: list[str] = field(default_factory=list)
    input_tokens: int | None = None
    output_tokens: int | None = None
    done: bool = False
    error: str = ""
    expects_end: bool = False
    cancelled: bool = False
    has_tool_input: bool = False
    is_incomplete: bool = False
    finished: bool = False
    open_choices: set[int] = field(default_factory=set)

    def name(self, response_id: Any = None, model: Any = None) -> None:
        """Keep the first id and the newest model that are given."""
        self.response_id = self.response_id or _name_of(response_id)
        self.model = _name_of(model) or self.model

    def finish(self, reason: Any) -> bool:
        """Keep a finish reason; return whether one was given."""
        if not reason:
            return False
        # An enumeration of a library has the name on the wire as its value.
        named = encodable(str(getattr(reason, "value", reason))[:100])
        if len(self.finish_reasons) < _REASONS_MAX:
            self.finish_reasons.append(named)
        else:
            self.finish_reasons[-1] = named
        self.finished = True
        return True

    def use(self, input_tokens: Any, output_tokens: Any) -> int | None:
        """Keep cumulative token counts where they are known, and return that of the output."""
        if (given := count_of(input_tokens)) is not None:
            self.input_tokens = given
        if (made := count_of(output_tokens)) is not None:
            self.output_tokens = made
        return made


def encodable(text: str) -> str:
    """Return a text that UTF-8 can encode: JSON may have half of a pair of surrogates, which makes the whole export fail."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _name_of(value: Any) -> str:
    return encodable(str(value)[:_NAME_CHARS_MAX]) if value else ""


def count_of(value: Any) -> int | None:
    """Return a count; ``None`` if the value is no whole number, or no possible one. A negative count is 0."""
    return max(0, value) if isinstance(value, int) and not isinstance(value, bool) and value <= _COUNT_MAX else None


def text_size(text: Any) -> int:
    """Return the UTF-8 bytes of a string; 0 for anything else. A lone surrogate counts as 3 bytes."""
    if not isinstance(text, str):
        return 0
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def json_size(value: Any) -> int:
    """Return the bytes of a value as JSON without spaces; of a string its own; 0 for ``None``."""
    if value is None or isinstance(value, str):
        return text_size(value)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text_size(text) + (_elided_size(value) if '""' in text else 0)


def _elided_size(value: Any) -> int:
    """Return the bytes of the strings in a value that were left out, of which its JSON has only the marks."""
    size, waiting = 0, [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, Elided):
            size += len(found)
        elif isinstance(found, (dict, list)):
            breathe()
            waiting += found.values() if isinstance(found, dict) else found
    return size


def error_type(error: Any) -> str:
    """Return the type, status or code of an error; ``error`` if it has none that is a plain name, because it could be a text."""
    found = (error.get("type") or error.get("status") or error.get("code")) if isinstance(error, dict) else None
    return str(found) if found and _CODE.fullmatch(str(found)) else "error"
