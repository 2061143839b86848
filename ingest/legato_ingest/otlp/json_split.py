"""Division of a large OTLP/JSON body into small documents with the same items, so that few values are in memory at a time.

A parsed value takes up to forty times the memory of its text. The division follows the three levels that every request of OTLP has, and
looks for the ends of values with regular expressions. The parser checks the parts, and gets every part that matters; members that OTLP does
not define are left out. The module parses no value.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import orjson
from google.protobuf.descriptor import Descriptor

from legato_ingest.errors import BadRequest, TooLarge
from legato_ingest.otlp.signals import Signal

__all__ = ["documents"]

# Bytes of the items of one document, and of the messages around them.
_ITEMS_BYTES_MAX, _AROUND_BYTES_MAX = 2**18, 2**18
# Elements of one array that are not items, and elements and members on the three levels together.
_SCOPES_MAX, _ELEMENTS_MAX = 16_384, 524_288
# No other thread runs while an expression matches, so it gets no more bytes of a value than these. A longer one is read bracket by bracket.
_MATCH_BYTES_MAX = 2**20
# A longer value is that of no item that is accepted.
_VALUE_BYTES_MAX = 2**23
# The regular expressions for a value: nested so deep at most. Deeper ones are read bracket by bracket.
_DEPTH_MAX = 10
_BEGINS = {b"}": b"{", b"]": b"["}
_TEXT = rb'"(?:[^"\\]++|\\.)*+"'
_SPACE = re.compile(rb"[ \t\r\n]*+")
_KEY = re.compile(rb'"((?:[^"\\]++|\\.)*+)"[ \t\r\n]*+:[ \t\r\n]*+', re.DOTALL)
_WHOLE_TEXT = re.compile(_TEXT, re.DOTALL)
_BRACKET = re.compile(_TEXT + rb"|[{}\[\]]", re.DOTALL)


def _nested(depth: int) -> bytes:
    inner = rb"|" + _nested(depth - 1) if depth else b""
    return rb'[{\[](?:[^{}\[\]"]++|' + _TEXT + inner + rb")*+[}\]]"


_VALUE = re.compile(_TEXT + rb'|[^{}\[\]",: \t\r\n]++|' + _nested(_DEPTH_MAX), re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Level:
    """A message on the way to the items: the names of its field to follow, and of its other fields."""

    followed: frozenset[bytes]
    others: frozenset[bytes]

    @property
    def name(self) -> bytes:
        """One name of the field to follow."""
        return min(self.followed)


@dataclass(slots=True)
class _Scope:
    """A message of the second level: its members but for the followed one, and begin and end of each item in the text.

    ``is_object`` is False for an element that is none; then ``members`` is its text.
    """

    members: bytes = b""
    items: array[int] = field(default_factory=lambda: array("Q"))
    is_object: bool = True


@cache
def _levels(kind: Descriptor, numbers: tuple[int, ...]) -> tuple[_Level, ...]:
    if not numbers:
        return ()
    followed = kind.fields_by_number[numbers[0]]
    names = {each: frozenset(name.encode() for name in (each.name, each.json_name)) for each in kind.fields}
    others = frozenset[bytes]().union(*(own for each, own in names.items() if each is not followed))
    return _Level(names[followed], others), *_levels(followed.message_type, numbers[1:])


def documents(content: bytes, signal: Signal) -> Iterator[bytes]:
    """Yield documents with the items of a body, in their order. A large item is alone in its document.

    Raises ``BadRequest`` where the text cannot be divided, and ``TooLarge`` for too large messages around items.
    """
    numbers = tuple(next(iter(each)) for each in signal.levels[:3])
    yield from _Walk(content, _levels(signal.request.DESCRIPTOR, numbers), left=_ELEMENTS_MAX).documents()


@dataclass(slots=True)
class _Walk:
    """A walk over a text. ``at`` is the place that is reached."""

    content: bytes
    levels: Sequence[_Level]
    at: int = 0
    left: int = 0

    def documents(self) -> Iterator[bytes]:
        """Yield the documents of each message of the first level."""
        first = self.levels[0]
        self._skip_space()
        for key in self._members():
            if key not in first.followed:
                self._value()
            elif not self._is_next(b"["):
                yield b'{"%s":%s}' % (first.name, self._value())
            else:
                for _ in self._elements(b"]"):
                    yield from self._resource()
        self._skip_space()
        if self.at != len(self.content):
            raise self._fault("the end of the text")

    def _resource(self) -> Iterator[bytes]:
        """Yield the documents of the message of the first level that begins here."""
        level, members, scopes = self.levels[1], list[bytes](), list[_Scope]()
        if not self._is_next(b"{"):
            yield b'{"%s":[%s]}' % (self.levels[0].name, self._value())
            return
        for key in self._members():
            if key in level.followed and self._is_next(b"["):
                for _ in self._elements(b"]"):
                    if len(scopes) == _SCOPES_MAX:
                        raise TooLarge(f"a resource with more than {_SCOPES_MAX} scopes: send fewer in one request")
                    scopes.append(self._scope())
            else:
                self._keep(key, level, members)
        around = self._joined(members)
        for inner in self._divided(scopes):
            yield b'{"%s":[{%s"%s":[%s]}]}' % (self.levels[0].name, around and around + b",", level.name, inner)

    def _scope(self) -> _Scope:
        """Read the message of the second level that begins here."""
        level, members, scope = self.levels[2], list[bytes](), _Scope()
        if not self._is_next(b"{"):
            return _Scope(self._value(), is_object=False)
        for key in self._members():
            if key in level.followed and self._is_next(b"["):
                for _ in self._elements(b"]"):
                    start = self.at
                    self._skip_value()
                    scope.items.extend((start, self.at))
            else:
                self._keep(key, level, members)
        scope.members = self._joined(members)
        return scope

    def _divided(self, scopes: Sequence[_Scope]) -> Iterator[bytes]:
        """Yield the text of some scopes with the items of one document."""
        texts, size, name = list[bytes](), 0, self.levels[2].name
        for scope in scopes:
            items, size = list[bytes](), size + len(scope.members)
            for place in range(0, len(scope.items), 2):
                item = self.content[scope.items[place] : scope.items[place + 1]]
                if len(item) > _ITEMS_BYTES_MAX and (texts or items):
                    yield b",".join([*texts, _scope_text(scope, name, items)])
                    texts, items, size = [], [], len(scope.members)
                items.append(item)
                size += len(item) + 1
                if size > _ITEMS_BYTES_MAX + len(scope.members):
                    yield b",".join([*texts, _scope_text(scope, name, items)])
                    texts, items, size = [], [], len(scope.members)
            if items or not scope.is_object:
                texts.append(_scope_text(scope, name, items))
        if texts:
            yield b",".join(texts)

    def _keep(self, key: bytes, level: _Level, members: list[bytes]) -> None:
        """Read a member that is not divided, and append it if OTLP defines it."""
        value = self._value()
        if key in level.followed and value != b"null":
            raise self._fault("an array")
        if key in level.others:
            members.append(b'"%s":%s' % (key, value))

    def _joined(self, members: Sequence[bytes]) -> bytes:
        size = sum(map(len, members))
        if size > _AROUND_BYTES_MAX:
            raise TooLarge(f"a resource or scope of {size} bytes, at most {_AROUND_BYTES_MAX} are accepted")
        return b",".join(members)

    def _members(self) -> Iterator[bytes]:
        """Yield the key of each member of the object that begins here; the caller reads the value."""
        for _ in self._elements(b"}"):
            found = _KEY.match(self.content, self.at)
            if found is None:
                raise self._fault("a key")
            self.at = found.end()
            key = found[1]
            yield _plain(key) if b"\\" in key else key

    def _elements(self, end: bytes) -> Iterator[None]:
        """Yield at the begin of each element of the array or object that begins here; the caller reads the element."""
        if not self._is_next(_BEGINS[end]):
            raise self._fault("an object")
        self.at += 1
        self._skip_space()
        if self._is_next(end):
            self.at += 1
            return
        while True:
            self.left -= 1
            if self.left < 0:
                raise TooLarge(f"a request of more than {_ELEMENTS_MAX} items, scopes, resources and fields of these: send fewer in one")
            yield
            self._skip_space()
            is_end = self._is_next(end)
            if not is_end and not self._is_next(b","):
                raise self._fault("a comma")
            self.at += 1
            if is_end:
                return
            self._skip_space()

    def _is_next(self, character: bytes) -> bool:
        return self.content[self.at : self.at + 1] == character

    def _value(self) -> bytes:
        start = self.at
        self._skip_value()
        return self.content[start : self.at]

    def _skip_value(self) -> None:
        end = min(len(self.content), self.at + _MATCH_BYTES_MAX)
        found = _VALUE.match(self.content, self.at, end) or _WHOLE_TEXT.match(self.content, self.at)
        # What ends at the bound may go on behind it.
        if found is not None and (found.end() != end or end == len(self.content)):
            self._reach(found.end())
            return
        depth, is_nested = 0, self._is_next(b"{") or self._is_next(b"[")
        for bracket in _BRACKET.finditer(self.content, self.at) if is_nested else ():
            depth += 1 if bracket[0] in (b"{", b"[") else -1 if bracket[0] in (b"}", b"]") else 0
            if not depth:
                self._reach(bracket.end())
                return
            if bracket.end() - self.at > _VALUE_BYTES_MAX:
                break
        if depth:
            self._reach(len(self.content))
        raise self._fault("a value")

    def _reach(self, end: int) -> None:
        """Go on at ``end``, after a value."""
        if end - self.at > _VALUE_BYTES_MAX:
            raise TooLarge(f"a value of more than {_VALUE_BYTES_MAX} bytes at byte {self.at}: send it in parts, or not at all")
        self.at = end

    def _skip_space(self) -> None:
        found = _SPACE.match(self.content, self.at)
        self.at = found.end() if found is not None else self.at

    def _fault(self, expected: str) -> BadRequest:
        return BadRequest(f"the body is not an OTLP request in JSON: expected {expected} at byte {self.at}")


def _scope_text(scope: _Scope, name: bytes, items: Sequence[bytes]) -> bytes:
    if not scope.is_object:
        return scope.members
    return b'{%s"%s":[%s]}' % (scope.members and scope.members + b",", name, b",".join(items))


def _plain(key: bytes) -> bytes:
    """Return a key without escapes."""
    try:
        return str(orjson.loads(b'"%s"' % key)).encode()
    except (orjson.JSONDecodeError, UnicodeError):
        return b""
