"""JSON to protobuf messages by the rules of OTLP/JSON (opentelemetry-proto 1.11, docs/specification.md, "JSON Protobuf Encoding").

The rules are those of protobuf's JSON mapping, except that ids of traces and spans are hexadecimal. Unknown fields and enum names are
ignored; ``null`` is an absent field; names in snake_case are accepted too. One setter a field is made from the descriptors at import,
because protobuf's own ``ParseDict`` inspects them again for each field (three times slower) and quotes values in its messages. The module
parses no text and has no knowledge of requests.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

__all__ = ["DEPTH_MAX", "REFUSED_MAX", "Fault", "Filler", "Refused", "TooManyRefused"]

# A parser of protobuf accepts 100 levels of messages.
DEPTH_MAX = 64
REFUSED_MAX = 65_536
# The fields that are hexadecimal, in every message that has them: spans, links, exemplars, log records.
_HEX = frozenset(("trace_id", "span_id", "parent_span_id"))
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_NUMBER = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,4})?")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NAMES = {str: "a text", bool: "a boolean", int: "an integer", float: "a number", list: "an array", dict: "an object", type(None): "null"}
_BASE64_URL = str.maketrans("-_", "+/")


class Fault(ValueError):
    """A JSON value that does not fit its field. ``path`` is completed from the inside out."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.path: list[str] = []

    def __str__(self) -> str:
        # A list's element is written `attributes[3]`, so its index needs no point before it.
        path = "".join(part if part.startswith("[") else f".{part}" for part in reversed(self.path)).lstrip(".")
        return f"{path[:200]}: {self.args[0]}" if path else str(self.args[0])


class TooManyRefused(ValueError):
    """A message with more than ``REFUSED_MAX`` items that have to be left out. Its text is the fault of the first."""


@dataclass(slots=True)
class Refused:
    """An item that was left out, and why. ``around`` holds the JSON of the isolating messages around it, innermost first."""

    item: Any
    detail: str
    around: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class _State:
    """The state of filling one message: the depth reached and the items that were left out."""

    depth: int = 0
    refused: list[Refused] = field(default_factory=list)


_Setter = Callable[[Any, Any, _State], None]
_Setters = dict[str, _Setter]


def _kind_of(value: object) -> str:
    """Return the kind of a JSON value in words; a text also with its length."""
    return f"a text of {len(value)} characters" if isinstance(value, str) else _NAMES.get(type(value), "a value")


class Filler:
    """Fills messages of one type from JSON. ``isolating`` holds full names of repeated fields: a fault in an element leaves it out."""

    def __init__(self, descriptor: Descriptor, isolating: Collection[str]) -> None:
        self._isolating = isolating
        self._types: dict[str, _Setters] = {}
        self._setters = self._setters_of(descriptor)

    def fill(self, message: Message, value: object) -> list[Refused]:
        """Set the fields of a message and return the items that were left out.

        Raises ``Fault`` for a fault outside of all items, and ``TooManyRefused``.
        """
        state = _State()
        _fill(message, value, self._setters, state)
        return state.refused

    def _setters_of(self, descriptor: Descriptor) -> _Setters:
        """Return the setters of a message's fields by their names in JSON and in protobuf. Messages may contain themselves."""
        found = self._types.get(descriptor.full_name)
        if found is None:
            found = self._types[descriptor.full_name] = {}
            for each in descriptor.fields:
                found[each.name] = found[each.json_name] = self._setter(each)
        return found

    def _setter(self, of: FieldDescriptor) -> _Setter:
        if of.message_type is None:
            return _scalars(of.name, _converter(of)) if of.is_repeated else _scalar(of.name, _converter(of))
        setters = self._setters_of(of.message_type)
        if not of.is_repeated:
            return _submessage(of.name, setters)
        return _items(of.name, setters) if of.full_name in self._isolating else _submessages(of.name, setters)


def _fill(message: Any, value: object, setters: _Setters, state: _State) -> None:
    if type(value) is not dict:
        raise Fault(f"expected an object, found {_kind_of(value)}")
    state.depth += 1
    if state.depth > DEPTH_MAX:
        raise Fault(f"nested deeper than {DEPTH_MAX} messages")
    for key, each in value.items():
        put = setters.get(key)
        if put is None or each is None:
            continue
        try:
            put(message, each, state)
        except Fault as fault:
            fault.path.append(key)
            raise
    state.depth -= 1


def _list(value: object) -> list[Any]:
    if type(value) is not list:
        raise Fault(f"expected an array, found {_kind_of(value)}")
    return value


def _submessage(name: str, setters: _Setters) -> _Setter:
    def put(message: Any, value: Any, state: _State) -> None:
        inner = getattr(message, name)
        # An empty object is present, too: `"value": {}` is an attribute without a value.
        inner.SetInParent()
        _fill(inner, value, setters, state)

    return put


def _submessages(name: str, setters: _Setters) -> _Setter:
    def put(message: Any, value: Any, state: _State) -> None:
        add = getattr(message, name).add
        for at, each in enumerate(_list(value)):
            try:
                _fill(add(), each, setters, state)
            except Fault as fault:
                fault.path.append(f"[{at}]")
                raise

    return put


def _items(name: str, setters: _Setters) -> _Setter:
    """A repeated field with elements that are left out when they have a fault."""

    def put(message: Any, value: Any, state: _State) -> None:
        items, depth = getattr(message, name), state.depth
        for each in _list(value):
            before = len(state.refused)
            try:
                _fill(items.add(), each, setters, state)
            except Fault as fault:
                del items[-1]
                state.depth = depth
                # Points that were refused inside a metric that is refused as a whole are part of it.
                state.refused[before:] = [Refused(each, str(fault))]
                if len(state.refused) > REFUSED_MAX:
                    raise TooManyRefused(state.refused[0].detail) from None
                continue
            for inner in state.refused[before:]:
                inner.around.append(each)

    return put


def _scalar(name: str, convert: Callable[[Any], Any]) -> _Setter:
    def put(message: Any, value: Any, state: _State) -> None:
        converted = convert(value)
        if converted is not None:
            try:
                setattr(message, name, converted)
            except ValueError:
                raise Fault("a number that is out of range") from None

    return put


def _scalars(name: str, convert: Callable[[Any], Any]) -> _Setter:
    def put(message: Any, value: Any, state: _State) -> None:
        try:
            getattr(message, name).extend([convert(each) for each in _list(value)])
        except Fault:
            raise
        except (TypeError, ValueError):
            raise Fault("a number that is out of range, or null") from None

    return put


def _converter(of: FieldDescriptor) -> Callable[[Any], Any]:
    if of.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        if of.type == FieldDescriptor.TYPE_STRING:
            return _text
        return _hexadecimal if of.name in _HEX else _bytes
    if of.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return _enumerator(of.enum_type)
    if of.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return _boolean
    return _number if of.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT) else _integer


def _text(value: object) -> str:
    if type(value) is not str:
        raise Fault(f"expected a text, found {_kind_of(value)}")
    return value


def _boolean(value: object) -> bool:
    if type(value) is not bool:
        raise Fault(f"expected true or false, found {_kind_of(value)}")
    return value


def _integer(value: object) -> int:
    if type(value) is int:
        return value
    if type(value) is str and _INTEGER.fullmatch(value):
        return int(value)
    # Protobuf's mapping permits 1.0 and 1e3. Beyond 2^53 a double no longer holds the digits that were sent.
    if type(value) is float and value.is_integer() and abs(value) <= 2**53:
        return int(value)
    raise Fault(f"expected an integer of at most 64 bits, found {_kind_of(value)}")


def _number(value: object) -> float:
    if type(value) is float or type(value) is int:
        return float(value)
    if type(value) is str:
        if value in _NOT_FINITE:
            return _NOT_FINITE[value]
        if _NUMBER.fullmatch(value) and math.isfinite(number := float(value)):
            return number
    raise Fault(f"expected a number, found {_kind_of(value)}")


def _enumerator(enum: EnumDescriptor) -> Callable[[Any], int | None]:
    numbers = {name: value.number for name, value in enum.values_by_name.items()}

    def convert(value: Any) -> int | None:
        return numbers.get(value) if type(value) is str and not _INTEGER.fullmatch(value) else _integer(value)

    return convert


def _hexadecimal(value: object) -> bytes:
    try:
        return binascii.unhexlify(value) if type(value) is str else _no_id(value)
    except ValueError:
        return _no_id(value)


def _no_id(value: object) -> bytes:
    raise Fault(f"expected hexadecimal digits, found {_kind_of(value)}") from None


def _bytes(value: object) -> bytes:
    if type(value) is not str:
        raise Fault(f"expected a text in base64, found {_kind_of(value)}")
    try:
        return base64.b64decode(value.translate(_BASE64_URL) + "=" * (-len(value) % 4), validate=True)
    except ValueError:
        raise Fault(f"expected a text in base64, found another text of {len(value)} characters") from None
