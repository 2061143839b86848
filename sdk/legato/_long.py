"""An event that is too long to be kept: what it says is read all the same, and its long strings are only measured.

An event is long because of a text, a picture, a list of tokens, or the request that it repeats. So a long string is left out while the
bytes arrive, and its place has its length; of a long list of numbers one is left. The rest is parsed as any other event. What is too long
even so is known by its beginning and its end: an event of OpenAI's Responses has its type first and its usage last.
This module does not frame events, and measures none.
"""

from __future__ import annotations

import json
import re
from typing import Any

from legato._pace import breathe
from legato._response import Elided

__all__ = ["LONG_BYTES", "LongEvent"]

LONG_BYTES = 1 << 16
"""A longer event is not kept. It bounds what a stream keeps of bytes that are not yet chunks."""
_SKELETON_BYTES_MAX = 1 << 15
# A longer string is left out, and a longer list of numbers.
_STRING_BYTES_MAX = 256
_EDGE_BYTES = 4096
_RUN_END_BYTES = 64
_HEAD_BYTES = 512
# The quantifiers are possessive: each byte is looked at once.
_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
# Outside strings: what structures the event or its framing, or what may belong to numbers.
_PIECE = re.compile(rb'[{}\[\]:"\r\n]++|[^{}\[\]:"\r\n]++')
_STRUCTURE = frozenset(b'{}[]:"\r\n')
_TYPE = re.compile(rb'"type":\s?"(response\.[\w.]{1,100})"')
_USAGE = re.compile(r'"usage":\s?(?=\{)')
# Of the places that look like the usage, so many are tried, from the end on.
_USAGES_MAX = 4
_PLACE = "\x7f"
# Steps between pauses: of the search for strings, and of the walk through what was parsed.
_PAUSE_MASK, _WALK_MASK = 31, 511


class LongEvent:
    """One long event. ``length``: its bytes so far. ``is_readable``: whether it is known from its first byte on."""

    __slots__ = (
        "_carry", "_is_in_string", "_is_whole", "_lengths", "_run_at", "_run_bytes", "_run_end", "_skeleton", "_string_at",
        "_string_bytes", "_string_size", "_tail", "is_readable", "length",
    )  # fmt: skip

    def __init__(self, *, is_readable: bool = True) -> None:
        self.is_readable = is_readable
        self.length = 0
        self._skeleton = bytearray()
        self._is_whole = is_readable
        self._tail = b""
        self._is_in_string = False
        # Where the string that is being read begins in the skeleton, its bytes so far, and those without escapes.
        self._string_at = self._string_bytes = self._string_size = 0
        # The same of what is no string and has no structure: numbers and commas. Its last bytes.
        self._run_at = self._run_bytes = 0
        self._run_end = b""
        # A backslash of which the next byte is not known yet.
        self._carry = b""
        self._lengths: list[int] = []

    def feed(self, data: bytes | bytearray) -> None:
        """Add bytes of the event."""
        self.length += len(data)
        if not self.is_readable:
            return
        self._tail = bytes((self._tail + data[-_EDGE_BYTES:])[-_EDGE_BYTES:])
        if self._is_whole:
            self._take(self._carry + data)
            if len(self._skeleton) > _SKELETON_BYTES_MAX:
                self._is_whole = False
                del self._skeleton[_EDGE_BYTES:]
                self._lengths.clear()

    def _take(self, data: bytes | bytearray) -> None:
        at, end, steps = 0, len(data), 0
        self._carry = b""
        while at < end and len(self._skeleton) <= _SKELETON_BYTES_MAX:
            steps += 1
            if not steps & _PAUSE_MASK:
                breathe()
            if not self._is_in_string:
                quote = data.find(b'"', at)
                stop = quote + 1 if quote >= 0 else end
                self._add_outside(data[at:stop])
                self._is_in_string = quote >= 0
                self._string_at, self._string_bytes, self._string_size = len(self._skeleton), 0, 0
                at = stop
                continue
            found = _IN_STRING.match(data, at)
            stop = found.end() if found else end
            self._add_to_string(data[at:stop])
            if stop < end and data[stop] != 0x22:
                self._carry = bytes(data[stop:])
                return
            if stop < end:
                self._end_string()
            at = stop + 1

    def _add_outside(self, part: bytes | bytearray) -> None:
        skeleton = self._skeleton
        for steps, found in enumerate(_PIECE.finditer(part), 1):
            if not steps & _PAUSE_MASK:
                breathe()
            piece = found.group()
            if piece[0] in _STRUCTURE:
                self._end_run()
                skeleton += piece
                self._run_at, self._run_bytes, self._run_end = len(skeleton), 0, b""
            else:
                skeleton += piece[: max(0, _STRING_BYTES_MAX - self._run_bytes)]
                self._run_bytes += len(piece)
                self._run_end = (self._run_end + piece[-_RUN_END_BYTES:])[-_RUN_END_BYTES:]
            if len(skeleton) > _SKELETON_BYTES_MAX:
                break

    def _end_run(self) -> None:
        """Put one number in the place of many, between the commas around them."""
        begin = bytes(self._skeleton[self._run_at :])
        if self._run_bytes > _STRING_BYTES_MAX and begin.count(b",") > 1:
            before, after = begin.lstrip().startswith(b","), self._run_end.rstrip().endswith(b",")
            self._skeleton[self._run_at :] = b"," * before + b"0" + b"," * after

    def _add_to_string(self, part: bytes | bytearray) -> None:
        self._string_bytes += len(part)
        self._string_size += _size_of(part)
        if self._string_bytes <= _STRING_BYTES_MAX:
            self._skeleton += part

    def _end_string(self) -> None:
        self._is_in_string = False
        if self._string_bytes > _STRING_BYTES_MAX:
            del self._skeleton[self._string_at :]
            self._skeleton += f"{_PLACE}{len(self._lengths)}".encode()
            self._lengths.append(self._string_size)
        self._skeleton += b'"'
        self._run_at, self._run_bytes, self._run_end = len(self._skeleton), 0, b""

    @property
    def text(self) -> bytes:
        """The event without its long strings; without its rest, if even that is too long."""
        return bytes(self._skeleton)

    def is_ended(self, payload: bytes) -> bool:
        """Whether a body that ends here ends after this event and not within it; ``payload``: as for `content_of`."""
        if not self._is_whole:
            return not self.is_readable or self._tail.rstrip().endswith(b"}")
        try:
            return isinstance(json.loads(payload), dict)
        except (ValueError, RecursionError):
            return False

    def content_of(self, payload: bytes) -> Any:
        """Return the JSON value of the event's payload, which is ``text`` without its framing; ``None`` if it cannot be known."""
        if self._is_whole:
            try:
                return self._restored(json.loads(payload))
            except (ValueError, RecursionError):
                pass
        return self._edges() if self.is_readable else None

    def _restored(self, content: Any) -> Any:
        """Put strings of the right length into the places of those that were left out."""
        root = [content]
        waiting: list[Any] = [root] if self._lengths else []
        steps = 0
        while waiting:
            found = waiting.pop()
            for key, value in list(found.items() if isinstance(found, dict) else enumerate(found)):
                steps += 1
                if not steps & _WALK_MASK:
                    breathe()
                if isinstance(value, (dict, list)):
                    waiting.append(value)
                elif isinstance(value, str) and value.startswith(_PLACE):
                    found[key] = self._elided(value)
        return root[0]

    def _elided(self, place: str) -> str:
        number = place[len(_PLACE) :]
        if not (number.isdecimal() and number.isascii()) or int(number) >= len(self._lengths):
            return place
        made = Elided()
        made.length = self._lengths[int(number)]
        return made

    def _edges(self) -> dict[str, Any] | None:
        """Return what the beginning and the end say of an event of OpenAI's Responses; ``None`` for any other."""
        found = _TYPE.search(self._skeleton, 0, _HEAD_BYTES)
        if found is None:
            return None
        tail = self._tail.decode("utf-8", "replace")
        usage: Any = None
        for each in [*_USAGE.finditer(tail)][: -_USAGES_MAX - 1 : -1]:
            try:
                usage = json.JSONDecoder().raw_decode(tail, each.end())[0]
                break
            except (ValueError, RecursionError):
                continue
        delta = Elided()
        delta.length = self.length
        return {"type": found.group(1).decode("ascii"), "delta": delta, "response": {"usage": usage}}


def _size_of(part: bytes | bytearray) -> int:
    """Return the UTF-8 bytes of a part of a JSON string. An escape that the part cuts counts with its own bytes."""
    if b"\\" not in part:
        return len(part)
    if part.isascii():
        cut = part.rfind(b"\\u", -5)
        end = cut if cut >= 0 else len(part)
        try:
            return len(json.loads(b'"%b"' % bytes(part[:end]), strict=False).encode("utf-8", "surrogatepass")) + len(part) - end
        except ValueError:
            pass
    pairs = part.count(b"\\\\")
    return len(part) - pairs - (part.count(b"\\") - 2 * pairs)
