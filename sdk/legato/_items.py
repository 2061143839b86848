"""The items of an iterator given to `legato.wrap`: objects of a library, text, bytes of a body, or lines of one.

The wrapper only keeps the time and the item; the worker measures it here. Objects become dictionaries (pydantic's ``model_dump``) and are
measured as the events that they were made from. The first item determines what the others are.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

from legato._body import Body
from legato._formats import sniff
from legato._long import LONG_BYTES, LongEvent
from legato._scan import Scan, blocks_of
from legato._timeline import Kind

__all__ = ["Items", "size_of"]

_TEXT = int(Kind.TEXT)
# A line of server-sent events, without its line end.
_SSE_LINE = re.compile(rb"(?:data|event|id|retry):|:")


def size_of(item: Any) -> int:
    """Return the UTF-8 bytes of an item's content. Items may be text, bytes, or OpenAI chunks (objects or dictionaries); others are 0."""
    try:
        if isinstance(item, str):
            return len(item) if item.isascii() else len(item.encode("utf-8", "surrogatepass"))
        return len(item) if isinstance(item, (bytes, bytearray)) else _size_of_object(item)
    except Exception:
        # An object with fields of these names and other types; a property, also that of its class, may raise anything.
        return 0


def _size_of_object(item: Any) -> int:
    choices = item.get("choices") if isinstance(item, dict) else getattr(item, "choices", None)
    if choices:
        delta = _get(choices[0], "delta")
        return size_of(_get(delta, "content") or "") if delta is not None else 0
    delta = _get(item, "delta")
    return size_of(delta) if isinstance(delta, str) else 0


def _get(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, dict) else getattr(item, name, None)


class _ObjectScanner(Scan):
    """Each item is an event. An application may leave out events, also the last, so a missing end mark means nothing."""

    __slots__ = ()

    def feed(self, time_ns: int, data: Any) -> None:
        """Add one item."""
        if issubclass(type(data), (str, bytes)):
            self._add(time_ns, size_of(data), _TEXT, None)
            return
        self._content(time_ns, _as_dict(data) or {}, size_of(data))
        self.response.expects_end = False

    def fold(self, time_ns: int, size: int) -> None:
        """Add an item of which only the size is known. It has its hold as any other."""
        self.response.expects_end = False
        self._add(time_ns, size, _TEXT, None)

    def miss(self) -> None:
        """Note that an item is missing. The next one is whole, but the holds from here on are those of other items."""
        self.gap_at = len(self.times) if self.gap_at is None else self.gap_at
        self.response.expects_end = False


class Items:
    """The items of one iterator. ``scan`` is the scanner that they go to, once the first is known."""

    __slots__ = ("_body", "_is_lines", "scan")

    def __init__(self) -> None:
        self.scan: Scan = _ObjectScanner()
        self._body: Body | None = None
        self._is_lines: bool | None = None

    def feed(self, time_ns: int, item: Any) -> None:
        """Add one item."""
        if self._is_lines is None:
            self._choose(item)
        if self._body is None:
            self.scan.feed(time_ns, item)
            return
        data = _bytes_of(item)
        self._body.feed(time_ns, data + b"\n" if self._is_lines else data)
        self.scan = self._body.scan

    def fold(self, time_ns: int, size: int) -> None:
        """Add an item of which only the size is known."""
        (self._body or self.scan).fold(time_ns, size)

    def miss(self) -> None:
        """Note that an item is missing."""
        (self._body or self.scan).miss()

    def finish(self, time_ns: int) -> None:
        """Take the iterator as exhausted."""
        if self._body is not None:
            self._body.finish(time_ns)
            self.scan = self._body.scan

    def _choose(self, first: Any) -> None:
        self._is_lines = False
        # By its type: what an object says of itself may raise.
        if not issubclass(type(first), (str, bytes, bytearray)):
            return
        data = _bytes_of(first)
        self._is_lines = b"\n" not in data and (_SSE_LINE.match(data) is not None or _is_event(data))
        if self._is_lines:
            self._body = Body("application/x-ndjson" if _is_event(data) else "text/event-stream")
        elif not issubclass(type(first), str) or _SSE_LINE.match(data) or _is_event(data.partition(b"\n")[0]):
            self._body = Body("")
        if self._body is not None:
            for time_ns, size in zip(self.scan.times, self.scan.sizes, strict=True):
                # Folded before any other.
                self._body.fold(time_ns, size)


def _bytes_of(item: object) -> bytes:
    """Return the bytes of text and bytes; anything else between them has none."""
    kind = type(item)
    if issubclass(kind, str):
        return str.encode(cast(str, item), "utf-8", "surrogatepass")
    return b"".join((cast(bytes, item),)) if issubclass(kind, (bytes, bytearray)) else b""


def _is_event(line: bytes) -> bool:
    if len(line) > LONG_BYTES:
        long = LongEvent()
        for block in blocks_of(line):
            long.feed(block)
        value = long.content_of(long.text)
        return isinstance(value, dict) and sniff(value) is not None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and sniff(value) is not None


def _as_dict(item: Any) -> dict[str, Any] | None:
    """Return an object's fields; ``None`` if it has none."""
    try:
        if isinstance(item, dict):
            return item
        dump = getattr(item, "model_dump", None)
        if dump is not None:
            # By alias: the fields then have the names that they have on the wire.
            found: dict[str, Any] = dump(by_alias=True, exclude_none=True, warnings=False)
            return found
        return dict(vars(item))
    except Exception:
        # Objects of any kind: an object that cannot be looked at has no known content.
        return None
